"""Part of E203: GPUs that a Python script hides from itself, and scripts that use none."""

import ast
import re
import sys
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.bash import Command
from echelon.lint.facts import is_alone, spawns
from echelon.lint.files import Place, find_file
from echelon.lint.harmless import INSTALLS, only_brings_files, runs_only_scripts, start_of
from echelon.lint.imported import read_imported
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, ancestors, constant, unparse
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.rules.wanted import lists_of_packages
from echelon.lint.subject import Started, Subject

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_STARTS_PROGRAMS = pattern(
    r"subprocess|\bos\.system\b|popen|\bos\.(?:exec|spawn)|\bsubmitit\b|\bray\b|importlib|"
    r"__import__|\brunpy\b|\bctypes\b|\bcffi\b|(?<![.\w])(?:exec|eval)\(|\binstantiate\b|_target_",
    re.IGNORECASE,
)
"""Text of scripts that may use modules or programs that lint does not see."""
_MAY_USE_GPUS = pattern(r"(?i)cuda|gpu|nvidia|torch|\bdevice\b|rocm|pickle|joblib\.load|\bdill\b")
_BUILDS_FOR_GPUS = pattern(
    r"(?i)nvcc|nvidia-smi|flash|apex|arch_list|setup\.py|\s-e\s|\bgit\+|deepspeed|xformers|"
    r"no-build-isolation|is_available|mamba[-_]ssm|causal[-_]conv|detectron|install\s+\.|no-binary"
)
"""Text of commands and lists of packages that may compile code for GPUs, or try them."""
_CHOOSES_BY_GPUS = pattern(r"(?i)torch|tensorflow|jax|cuda|cupy|rapids|gpu|openmm|faiss|dgl|pyg")
"""Packages for which conda may install the CPU build if the node has no GPU."""
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_FOUND_DEVICES = pattern(r"\bcuda\b|\bgpus?\b|device_count|tf\.config|\bjax\.")
"""Text that may have looked for the GPUs already."""
_COMMENT = pattern(r"#[^\n]*")
_DEVICES = pattern(r"\s*\d{1,3}(?:\s*,\s*\d{1,3}){0,99}\s*")
_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_ON_CPUS = frozenset(
    {
        *("numpy", "pandas", "scipy", "sklearn", "skimage", "matplotlib", "mpl_toolkits"),
        "seaborn",
        *("tqdm", "yaml", "PIL", "h5py", "networkx", "requests", "joblib", "psutil", "tabulate"),
        *("omegaconf", "hydra", "click", "dotenv", "toml", "tomli", "rich", "pyarrow", "openpyxl"),
        *("natsort", "nltk", "regex", "bs4", "lxml", "six", "attr", "attrs", "pydantic", "typer"),
        *("fire", "absl", "termcolor", "colorama", "loguru", "sympy", "shapely", "geopandas"),
        *("rasterio", "astropy", "statsmodels", "plotly", "xarray", "netCDF4", "orjson", "ujson"),
        *("simplejson", "jsonlines", "dateutil", "pytz", "packaging", "pkg_resources"),
        "setuptools",
        *("soundfile", "imageio", "tifffile", "nibabel", "pysam", "Bio", "huggingface_hub"),
    }
)
"""Packages that use no GPU."""


def find_hidden_gpus(subject: Subject) -> Iterator[Hit]:
    """Find a single process that sets CUDA_VISIBLE_DEVICES to fewer GPUs than the job has."""
    if len(subject.started) != 1 or not runs_only_scripts(subject):
        return
    one = subject.started[0]
    python, gpus = one.python, one.launch.amounts.gpus_per_node or 0
    if python is None or not _is_plain(subject, one) or subject.may_have_several_nodes:
        return
    devices = _own_devices(python)
    if devices is None:
        return
    value = str(constant(devices)).replace(" ", "")
    count = len(set(value.split(",")))
    if count < gpus:
        yield Hit(
            at=python.at(devices),
            what=f"{python.path} sets {_VARIABLE} to {value}, so it uses {count} of the {gpus} "
            "GPUs of the job. The others are idle.",
            fix=f"delete the line, or request fewer GPUs: #SBATCH --gpus-per-node={count}",
        )


def find_cpu_programs(subject: Subject) -> Iterator[Hit]:
    """Find jobs on GPUs whose scripts import only modules that use none."""
    gpus = subject.job.gpus_per_node
    given = next(filter(None, map(subject.directives.last, _GPU_OPTIONS)), None)
    if not gpus or given is None or not runs_only_scripts(subject):
        return
    if not all(
        _has_no_launcher(one.launch) and _uses_no_gpus(subject, one) for one in subject.started
    ):
        return
    paths = sorted({one.python.path for one in subject.started if one.python is not None})
    scripts = " or ".join(paths[:2])
    line = subject.line_at(Place(subject.path, given.line)).strip()
    yield Hit(
        at=Place(subject.path, given.line),
        what=f"The job requests {counted(gpus, 'GPU')}, but no module that {scripts} imports "
        "uses GPUs.",
        fix=f"delete `{line}`, unless the partition requires a GPU",
        severity=ADVICE,
    )


def find_installations(subject: Subject) -> Iterator[Hit]:
    """Find jobs on GPUs that only install packages or download files."""
    given = next(filter(None, map(subject.directives.last, _GPU_OPTIONS)), None)
    if not subject.job.gpus_per_node or given is None or not only_brings_files(subject):
        return
    if _may_need_gpus(subject):
        return
    line = subject.line_at(Place(subject.path, given.line)).strip()
    yield Hit(
        at=Place(subject.path, given.line),
        what="The job requests GPUs, but it only installs packages or copies files.",
        fix=f"delete `{line}`, unless the partition requires a GPU",
        severity=ADVICE,
    )


def _may_need_gpus(subject: Subject) -> bool:
    """Tell whether what a job installs may depend on the GPUs of its node."""
    for command in subject.commands:
        if command.name == "set":
            continue
        text = command.text
        for path in _lists(command):
            place = find_file(subject.files, path, (subject.path, ""))
            if not place:
                return True
            text += f"\n{subject.files.read(place)}"
        by_conda = command.name in _CONDA and _CHOOSES_BY_GPUS.search(text)
        if by_conda or _BUILDS_FOR_GPUS.search(text):
            return True
    return False


def _lists(command: Command) -> list[str]:
    """Return the lists of packages that a command installs."""
    found = INSTALLS.match(start_of(command))
    lists = lists_of_packages(command) if found else []
    return lists or (["environment.yml"] if found and found["env"] else [])


def _has_no_launcher(launch: Launch) -> bool:
    return launch.launcher is None and not launch.mpi and not launch.elsewhere


def _is_plain(subject: Subject, one: Started) -> bool:
    """Tell whether a launch is one process, next to which no other runs."""
    launch = one.launch
    if not _has_no_launcher(launch) or spawns(one.python) or not is_alone(subject, launch):
        return False
    return launch.srun is None or launch.amounts.tasks == 1


def _own_devices(python: PythonScript) -> ast.expr | None:
    """Return the only value of CUDA_VISIBLE_DEVICES, if the script always sets it to numbers."""
    code = _COMMENT.sub("", python.text)
    if code.count(_VARIABLE) != 1 or _VARIABLE in python.neighbours:
        return None
    if _STARTS_PROGRAMS.search(code) or _STARTS_PROGRAMS.search(python.neighbours):
        return None
    for name in ("os.environ", "environ"):
        for value in python.assigned.get(f"{name}['{_VARIABLE}']", []):
            text, above = constant(value), list(ancestors(python, value))
            outer = all(
                isinstance(node, ast.Assign | ast.Module)
                or (isinstance(node, ast.If) and unparse(node.test) == "__name__ == '__main__'")
                for node in above
            )
            before = "\n".join(python.text.split("\n")[: value.lineno - 1])
            early = not _FOUND_DEVICES.search(_COMMENT.sub("", before))
            if outer and early and isinstance(text, str) and _DEVICES.fullmatch(text):
                return value
    return None


def _uses_no_gpus(subject: Subject, one: Started) -> bool:
    """Tell whether a script, and all that it imports, uses only the CPU."""
    found = read_imported(subject, one.python) if one.python is not None else None
    if found is None or found.others - _ON_CPUS - sys.stdlib_module_names:
        return False
    words = " ".join(word.text for word in one.launch.arguments)
    return not any(
        _STARTS_PROGRAMS.search(text) or _MAY_USE_GPUS.search(text)
        for text in (*found.texts, words)
    )
