"""E629: modules at the root of the repository that Python does not find."""

import re
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath

from echelon.core.frozen import frozen
from echelon.lint.facts import CONTAINER, sources_others
from echelon.lint.imported import imports_of
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript
from echelon.lint.repository import Repository
from echelon.lint.rule import WARNING, Hit, Rule
from echelon.lint.subject import Subject

_CHANGES_PATH = pattern(
    r"sys\.path|from\s+sys\s+import|\bsite\b|importlib|__import__|runpy|PYTHONPATH|__path__|"
    r"pyrootutils|rootutils|autoroot"
)
"""Text of scripts that may change where Python searches."""
_OTHER_PYTHON = pattern(r"ipython|pypy")
_INSTALLERS = frozenset({"setup.py", "setup.cfg", "pyproject.toml", "meta.yaml"})
_INSTALLS = ("PYTHONPATH", "pip install", "-e .", "setup.py", "conda develop", "add2virtualenv")
"""Text of files that say how modules of the repository are found."""
_OTHER_INSTALL = pattern(r"pip3? install(?!.*(?:\s-e|\s--editable|\s\.|\sgit\+))")
"""Lines that install packages, and not the repository itself."""
_REQUIREMENTS = pattern(r"(?:.*/)?(?:.*requirements.*\.txt|.*(?:env|conda)[^/]*\.ya?ml|Pipfile)")
_PACKAGES = frozenset(
    {
        *("datasets", "evaluate", "transformers", "diffusers", "accelerate", "peft", "trl", "timm"),
        *("clip", "open_clip", "gym", "gymnasium", "torch", "torchvision", "torchaudio", "fairseq"),
        *("detectron2", "mmdet", "mmcv", "mmseg", "mmengine", "mmpretrain", "tensorflow", "keras"),
        *("lavis", "llava", "apex", "sam2", "segment_anything", "lm_eval", "verl", "vllm"),
        "sglang",
        *("xformers", "flash_attn", "mamba_ssm", "dgl", "e3nn", "nerfstudio", "lightning", "hydra"),
        *("pytorch_lightning", "wandb", "habitat", "pytorch3d", "groundingdino", "robosuite"),
        *("pointnet2", "pointnet2_ops", "deepspeed", "megatron", "unsloth", "llamafactory"),
        "axolotl",
        *("esm", "openfold", "pykeops", "torch_geometric", "jax", "flax", "optax", "numpy"),
        "scipy",
        *("pandas", "sklearn", "matplotlib", "whisper", "nemo", "espnet", "speechbrain"),
        *("openai", "anthropic", "guidance", "dspy", "ray", "dask", "litgpt", "lit_gpt"),
        "torchtune",
    }
)
"""Packages that people install and that some repositories also contain as a copy."""
_COPIES = frozenset({"cp", "mv", "ln", "rsync"})


def find_modules_not_found(subject: Subject) -> Iterator[Hit]:
    text = "\n".join(shell.text for shell in subject.shells)
    if _CHANGES_PATH.search(text) or CONTAINER.search(text) or sources_others(subject):
        return
    seen, told = set[str](), set[str]()
    for one in subject.started:
        python = one.python
        if python is None or python.path in seen or not _searches_beside(one.launch):
            continue
        seen.add(python.path)
        missing = _first_missing(subject, python)
        if missing is None or missing.folder in told:  # one line mends all of them
            continue
        if not _is_sure(subject, one.launch, python, missing):
            continue
        told.add(missing.folder)
        where = f"{missing.folder}/" if missing.folder else "the top directory of the repository"
        yield Hit(
            at=one.launch,
            what=f"{python.path} imports {missing.name}, which is in {where}, not beside the "
            "script. Python searches the directory of the script, not the current one, and fails "
            "with ModuleNotFoundError.",
            fix=f"export PYTHONPATH={_searched(one.launch, missing.script)}",
        )


@frozen
class _Missing:
    """A module of the repository that is not beside the script that imports it."""

    name: str
    folder: str
    """Where it is, relative to the repository; empty for its top directory."""
    script: str
    """The path of the script, relative to that folder."""


def _searches_beside(launch: Launch) -> bool:
    """Tell whether Python searches the directory of the script, and no other of the job."""
    launcher = launch.launcher
    if launch.module or launch.elsewhere or launch.looked_up or launch.program is None:
        return False
    if _OTHER_PYTHON.search(launch.command.text):
        return False
    if launcher is None or launcher.kind in ("torchrun", "launch"):
        return True
    # With DeepSpeed, which its configuration may choose, accelerate adds the current directory.
    return launcher.kind == "accelerate" and "multi-gpu" in launcher.options


def _first_missing(subject: Subject, python: PythonScript) -> _Missing | None:
    """Return the first module that a script imports at its top level and does not find."""
    root, repository = subject.files.root(python.path), subject.files.repository(python.path)
    if root is None or repository is None or not root.below:
        return None
    if _CHANGES_PATH.search(python.text) or _CHANGES_PATH.search(python.neighbours):
        return None
    script = f"{root.below}/{PurePosixPath(python.path).name}"
    above = [str(folder) for folder in PurePosixPath(root.below).parents]
    for one in imports_of(python.tree.body):
        if not one.top or one.top in _PACKAGES or one.top in sys.stdlib_module_names:
            continue
        if _has(repository, root.below, one.top):
            continue
        for folder in ("" if name == "." else name for name in above):
            start = f"{folder}/" if folder else ""
            if any(f"{start}{place}" in repository.paths for place in one.places):
                inside = script.removeprefix(start)
                return _Missing(name=one.top, folder=folder, script=inside)
    return None


def _has(repository: Repository, folder: str, name: str) -> bool:
    """Tell whether a folder has a module, a package or a link of this name."""
    own = f"{folder}/{name}"
    return any(path == own or path.startswith((f"{own}/", f"{own}.")) for path in repository.paths)


def _is_sure(subject: Subject, launch: Launch, python: PythonScript, missing: _Missing) -> bool:
    """Tell whether nothing says that the module is installed or that another script runs."""
    repository, root = subject.files.repository(python.path), subject.files.root(python.path)
    if repository is None or root is None or launch.program is None:
        return False
    names = {PurePosixPath(python.path).name, missing.name}
    copies = (c.text for c in subject.commands if c.name in _COPIES)
    if any(name in text for text in copies for name in names):
        return False
    program = launch.program.text
    if not program.startswith(("/", "$", "~")) and len(repository.folders_with(program)) > 1:
        return False
    folders = PurePosixPath(missing.folder, "x").parents
    if {str(folder / name) for folder in folders for name in _INSTALLERS} & repository.paths:
        return False
    listed = pattern(rf"(?m)^[\s-]*{re.escape(missing.name)}\b")
    for path in filter(_REQUIREMENTS.fullmatch, repository.paths):
        if listed.search(subject.files.read(f"{root.path}/{path}") or ""):
            return False
    return not any(
        not _OTHER_INSTALL.search(line) or re.search(rf"install.*\b{missing.name}\b", line)
        for text in _INSTALLS
        for line in subject.files.lines_with(f"{root.path}/{text}")
    )


def _searched(launch: Launch, script: str) -> str:
    """Return the directory that Python has to search, as the job script names it."""
    program = launch.program.text if launch.program is not None else ""
    program = program.removeprefix("./")
    if program == script:
        return f"$PWD  # or start it with -m {script.removesuffix('.py').replace('/', '.')}"
    if program.endswith(f"/{script}"):
        before = program.removesuffix(f"/{script}")
        return before if before.startswith(("/", "$")) else f"$PWD/{before}"
    if script.endswith(f"/{program}"):
        return "$PWD" + "/.." * (script.count("/") - program.count("/"))
    return "…  # the directory of the module"


RULES = (
    Rule(
        code="E629",
        title="module that Python does not find",
        severity=WARNING,
        check=find_modules_not_found,
        why="`python scripts/eval.py` searches for modules in `scripts`, not in the current "
        "directory. This holds for torchrun as well. `python -m scripts.eval` searches the current "
        "directory, and `PYTHONPATH` adds others.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-python scripts/eval.py    # <- here
+python -m scripts.eval
 --- scripts/eval.py
 from scoring.bleu import score
 print(score())
 --- scoring/bleu.py
 def score():
     return 1
""",
    ),
)
