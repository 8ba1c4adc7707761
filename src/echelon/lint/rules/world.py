"""E309 to E312: variables and files through which ranks find each other."""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Any

from echelon.core.units import counted
from echelon.lint.bash import Assignment, Where
from echelon.lint.edits import replace_group
from echelon.lint.facts import sources_others
from echelon.lint.files import Place, beside
from echelon.lint.known import OF_PROGRAMS
from echelon.lint.patterns import pattern
from echelon.lint.python_script import (
    PythonScript,
    constant,
    is_conditional,
    keyword,
    origin,
    unparse,
)
from echelon.lint.request import read_step
from echelon.lint.rule import ADVICE, WARNING, Hit, Located, Rule
from echelon.lint.rules.unused import find_unused
from echelon.lint.subject import Started, Subject

_NEEDED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_RENDEZVOUS = pattern(r"(init|dist|rdzv|rendezvous|store)[\w.-]*[= ]+['\"]?file://", re.IGNORECASE)
_CLEANS = (
    *("os.remove", "unlink", "RESTART_COUNT", "mkdtemp", "mktemp", "uuid"),
    *("TemporaryDirectory", "NamedTemporaryFile"),
)
"""Words in scripts that remove the file, or use a new one every time."""
_FILE_OF_RUN_IN_PYTHON = (
    "init_method=f\"file://{os.getcwd()}/.rendezvous-{os.environ['SLURM_JOB_ID']}-"
    "{os.environ.get('SLURM_RESTART_COUNT', 0)}\""
)
_FROM_SLURM = {
    "RANK": "$SLURM_PROCID",
    "LOCAL_RANK": "$SLURM_LOCALID",
    "WORLD_SIZE": "$SLURM_NTASKS",
}


_SETS_VARIABLES = frozenset({"idr_torch"})
"""Modules of computing centres that take the rendezvous from Slurm."""
_KNOWN_MODULES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchmetrics"),
        *("numpy", "scipy", "pandas", "sklearn", "matplotlib", "seaborn", "PIL", "cv2", "skimage"),
        *("tqdm", "yaml", "omegaconf", "hydra", "wandb", "tensorboard", "tensorboardX", "mlflow"),
        *("datasets", "transformers", "tokenizers", "diffusers", "peft", "safetensors", "timm"),
        *("einops", "h5py", "zarr", "xarray", "netCDF4", "apex", "psutil", "termcolor", "rich"),
        *("requests", "sentencepiece", "nltk", "torch_geometric", "monai", "albumentations"),
    }
)
"""Modules that do not set variables of the rendezvous."""


def find_world_size(subject: Subject) -> Iterator[Hit]:
    plain = [one for one in subject.started if _is_plain(one) and _reads_world_size(one)]
    for assignment in subject.assigned("WORLD_SIZE"):
        if assignment.where is not Where.BATCH or not assignment.certain or not plain:
            continue
        number, amounts = assignment.value.number, plain[0].launch.amounts
        if number is None or "WORLD_SIZE" not in subject.exported or amounts.tasks is None:
            continue
        ranks = {amounts.tasks, (amounts.nodes or 0) * (amounts.gpus_per_node or 0)} - {0}
        ranks |= {read_step(subject.job, options).tasks or 0 for _, options, _ in subject.sruns}
        literal = not assignment.value.uses
        if number not in ranks:
            yield Hit(
                at=assignment,
                what=f"`WORLD_SIZE` is {number}, but srun starts {counted(amounts.tasks, 'rank')}. "
                "The ranks wait for each other until they time out.",
                fix="export WORLD_SIZE=$SLURM_NTASKS",
            )
        elif literal and amounts.tasks == number and number > 1:
            yield Hit(
                at=assignment,
                what="`WORLD_SIZE` is hard-coded. The job hangs if you change the number of nodes "
                "or tasks but not this line.",
                fix="export WORLD_SIZE=$SLURM_NTASKS",
                severity=ADVICE,
            )


def _is_plain(one: Started) -> bool:
    """Tell whether each Slurm task of a launch is one rank."""
    launch = one.launch
    return launch.srun is not None and launch.launcher is None and not launch.mpi


def _reads_world_size(one: Started) -> bool:
    return one.python is None or one.python.mentions("WORLD_SIZE", "init_process_group")


def find_missing_variables(subject: Subject) -> Iterator[Hit]:
    if not subject.is_job or sources_others(subject):
        return
    for one in subject.started:
        python, launch = one.python, one.launch
        if python is None or not _is_plain(one) or not launch.amounts.several_tasks:
            continue
        needed = _needed(python)
        here = subject.exported | launch.variables | _set_in(python)
        missing = [name for name in _NEEDED if name in needed and name not in here]
        foreign = _foreign_modules(subject, python) if missing else set()
        if missing and not foreign & _SETS_VARIABLES:
            values = " ".join(f"{name}={_FROM_SLURM.get(name, '…')}" for name in missing)
            yield Hit(
                at=launch,
                what=f"{python.path} needs {_listed(missing)}, but neither srun nor this script "
                f"sets {'it' if len(missing) == 1 else 'them'}.",
                fix=f"srun bash -c 'export {values}; exec python …'",
                severity=ADVICE if foreign else None,  # a module may set them
            )


def _foreign_modules(subject: Subject, python: PythonScript) -> set[str]:
    """Return the modules that a script imports, that lint cannot read and does not know."""
    names = {alias.name for n in python.nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in python.nodes if isinstance(n, ast.ImportFrom) if not n.level}
    tops = {name.partition(".")[0] for name in names} - {""}
    return {
        name
        for name in tops - sys.stdlib_module_names - _KNOWN_MODULES
        if not subject.files.is_folder(beside(python.path, name))
        and subject.files.read(beside(python.path, f"{name}.py")) is None
        and subject.files.read(beside(python.path, f"{name}/__init__.py")) is None
    }


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)


def _needed(python: PythonScript) -> set[str]:
    """Return the variables that a script cannot run without."""
    found: set[str] = set()
    for node in python.nodes:
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and unparse(node.value) in ("os.environ", "environ")
            and not is_conditional(python, node)
        ):
            found.add(str(constant(node.slice)))
    for call in python.calls("init_process_group"):
        method, store = keyword(call, "init_method", 1), keyword(call, "store")
        made_of = origin(python, method)
        if store is not None or re.search(r"tcp:|file:", made_of) or is_conditional(python, call):
            continue
        if method is not None and "env://" not in made_of:
            continue
        found |= {"MASTER_ADDR", "MASTER_PORT"}
        for name, argument in {"RANK": "rank", "WORLD_SIZE": "world_size"}.items():
            if keyword(call, argument) is None:
                found.add(name)
    return found


def _set_in(python: PythonScript) -> set[str]:
    text = python.text + python.neighbours
    return {
        name
        for name in _NEEDED
        if name in text
        and re.search(
            rf"""environ\[['"]{name}['"]\]\s*=|setdefault\(\s*['"]{name}|['"]{name}['"]:|"""
            rf"""putenv\(\s*['"]{name}|update\([^)]*\b{name}\b""",
            text,
        )
    }


def find_stale_file(subject: Subject) -> Iterator[Hit]:
    requeues = subject.directives.last("no-requeue") is None
    for one in subject.started:
        option = ""
        for word in one.launch.arguments:
            match = re.search(r"file://(\S+)", word.text)
            named, option = _RENDEZVOUS.search(f"{option} {word.text}"), word.text
            if match is None or not named:
                continue
            if _is_fresh(word.text, word.names) or _is_removed(subject, match[1]):
                continue
            if word.names & {"SLURM_JOB_ID", "SLURM_JOBID"} and not requeues:
                continue
            at = Place(one.launch.path, word.line or one.launch.line)
            yield _stale(at, "file://$PWD/.rendezvous-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}")
    for python in subject.pythons:
        for call in python.calls("init_process_group"):
            made_of = origin(python, keyword(call, "init_method", 1))
            if "file://" in made_of and not python.mentions(*_CLEANS):
                yield _stale(python.at(call), _FILE_OF_RUN_IN_PYTHON)


def _is_fresh(text: str, names: frozenset[str]) -> bool:
    return "mktemp" in text or bool(names & {"SLURM_RESTART_COUNT", "RANDOM", "TMPDIR"})


def _is_removed(subject: Subject, path: str) -> bool:
    name = path.rpartition("/")[2]
    return any(c.name == "rm" and (name in c.text or path in c.text) for c in subject.commands)


def _stale(at: Located, fix: str) -> Hit:
    return Hit(
        at=at,
        what="The file remains if the job is killed, and a requeued job has the same ID. The new "
        "ranks then read stale entries.",
        fix=fix,
    )


def find_not_exported(subject: Subject) -> Iterator[Hit]:
    yield from find_unused(subject)
    if not subject.is_job or not subject.started or sources_others(subject):
        return
    read = frozenset(name for shell in subject.shells for name in shell.names_read)
    for shell in (shell for shell in subject.shells if shell.where is Where.BATCH):
        for assignment in shell.assignments:
            name = assignment.name
            if name in subject.exported or name in read or not _is_for_programs(subject, name):
                continue
            yield Hit(
                at=assignment,
                what=f"`{name}` is not exported, so programs do not see it.",
                severity=None if _is_certain(subject, name) else ADVICE,
                **_exported(subject.line_at(assignment), assignment),
            )


def _exported(line: str, assignment: Assignment) -> dict[str, Any]:
    """Return the fix and its edit: `export` before the assignment, which remains as written."""
    own = re.match(rf"\s*(){assignment.name}=", line)
    if not own or line.endswith("\\"):
        return {"fix": f"export {assignment.name}  # after the assignment"}
    edit = replace_group(assignment.line, own, "export ", 1)
    return {"fix": f"export {line.strip()}", "edits": (edit,)}


def _is_for_programs(subject: Subject, name: str) -> bool:
    """Tell whether a program of the job reads a variable, which nothing else sets."""
    if name in _NEEDED:  # launchers set these themselves
        return any(_needs(one, name) for one in subject.started)
    if name == "CUDA_VISIBLE_DEVICES":  # Slurm has exported it if the job has GPUs
        return subject.job.gpus_per_node == 0
    return name in OF_PROGRAMS


def _is_certain(subject: Subject, name: str) -> bool:
    """Tell whether a program that lint can read needs a variable of the rendezvous."""
    if name not in _NEEDED:
        return True
    known = (one.python for one in subject.started if _needs(one, name))
    return any(python is not None for python in known)


def _needs(one: Started, name: str) -> bool:
    if one.launch.launcher is not None or one.launch.mpi:
        return False
    return one.python is None or name in _needed(one.python) - _set_in(one.python)


RULES = (
    Rule(
        code="E309",
        title="wrong `WORLD_SIZE`",
        severity=WARNING,
        check=find_world_size,
        why="`WORLD_SIZE` is the number of ranks, not of nodes. If each task is a rank, Slurm "
        "provides it as `SLURM_NTASKS`.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --ntasks-per-node=4
 #SBATCH --exclusive
 export MASTER_ADDR=$(hostname) MASTER_PORT=29500
-export WORLD_SIZE=$SLURM_NNODES    # <- here
+export WORLD_SIZE=$SLURM_NTASKS
 srun python train.py
""",
    ),
    Rule(
        code="E310",
        title="required variable that is not set",
        severity=WARNING,
        check=find_missing_variables,
        why="torchrun sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. "
        "srun sets none of them. By default, `init_process_group` needs all of them except "
        "`LOCAL_RANK`.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
 #SBATCH --ntasks-per-node=1
 #SBATCH --exclusive
 export MASTER_ADDR=$(hostname) MASTER_PORT=29500 WORLD_SIZE=$SLURM_NTASKS
-srun python train.py    # <- here
+srun bash -c 'RANK=$SLURM_PROCID python train.py'
 --- train.py
 import torch.distributed as dist
 dist.init_process_group("gloo")
 dist.destroy_process_group()
""",
    ),
    Rule(
        code="E311",
        title="stale rendezvous file",
        severity=WARNING,
        check=find_stale_file,
        why="Ranks that are killed leave the rendezvous file behind. A requeued job has the same "
        "ID, and only `SLURM_RESTART_COUNT` differs.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-srun python train.py --dist-url file://$PWD/meet.$SLURM_JOB_ID    # <- here
+srun python train.py --dist-url file://$PWD/meet.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
""",
    ),
    Rule(
        code="E312",
        title="variable that has no effect",
        severity=WARNING,
        check=find_not_exported,
        why="A plain assignment sets a shell variable. Programs see only exported variables. It is "
        "a warning because sbatch passes on the submitter's environment, and a variable that is "
        "in it is exported already. A variable that neither the script nor a program can read is "
        "advice.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-OMP_NUM_THREADS=8    # <- here
+export OMP_NUM_THREADS=8
 python train.py
""",
    ),
)
