"""Finds the problems of a request before anything is started.

Scripts are checked with `echelon lint`. A request is refused only for an error on a line that the
script always reaches. Other errors are printed as warnings.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.client.submit.parameters import split_array
from echelon.core.notes import note
from echelon.core.records import read_bytes
from echelon.core.shell import Shell
from echelon.errors import MissingProgramError, UsageError
from echelon.run.sweep import Table, check_placeholders
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import nearest

if TYPE_CHECKING:
    from echelon.lint.rule import Finding

_NAMED = 8
"""How many file names are suggested for a missing script."""
_SHOWN = 200
"""How many characters of a program's message are shown."""
_NAMES = "E626"
"""The rule for undefined names, whose errors are on lines that always run."""


def check_files(spec: JobSpec, folder: Path) -> list[str]:
    """Return the problems of the files in a request, relative to the job's directory."""
    found = [] if spec.module else _check_script(spec, folder / spec.script)
    parent = (folder / spec.output).parent
    if spec.output and "%" not in str(parent) and not parent.is_dir():
        found.append(f"the output directory {parent} does not exist: mkdir -p {parent}")
    if not spec.output and "\\" in str(folder):
        found.append(
            f"Slurm cannot write output in {folder}, because its name has a backslash: "
            "rename it, or set --output"
        )
    if spec.venv and (problem := _check_venv(folder / spec.venv)):
        found.append(problem)
    return found


def _check_venv(venv: Path) -> str:
    try:
        (venv / "bin" / "activate").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        create = "create it with python3 -m venv, or choose another with --venv"
        return f"no virtual environment in {venv}: {create}"
    except OSError as error:
        return f"cannot read the virtual environment {venv}: {error.strerror}: {error.filename}"
    return ""


def _check_script(spec: JobSpec, script: Path) -> list[str]:
    if script.is_dir():
        return [f"the script {script} is a directory: pass a file in it"]
    if spec.style == "echelon" and "/" not in spec.script and shutil.which(spec.script):
        return []  # any program on PATH can be run
    try:
        content = read_bytes(script)
        if spec.style != "echelon" or script.suffix == ".py":
            compile(content, str(script), "exec", dont_inherit=True)
    except FileNotFoundError:
        return [f"the script {script} does not exist: {_suggest(script)}"]
    except (SyntaxError, ValueError) as error:
        return [f"the script {script} does not compile: {error}"]
    return []


def _suggest(script: Path) -> str:
    """Return a suggestion for a missing script: similar file names in its directory."""
    beside = sorted(path.name for path in script.parent.glob("*.py"))[:_NAMED]
    return nearest(script.name, beside) if beside else f"there is no .py file in {script.parent}"


def check_python(spec: JobSpec, folder: Path, shell: Shell) -> list[str]:
    """Report a missing Python of the ranks, or one without torch.

    With conda, modules, a prologue or an image, this cannot be checked before the job starts.
    """
    script = folder / spec.script
    if spec.conda or spec.modules or spec.prologue or spec.image or not script.is_file():
        return []
    if spec.venv and not spec.python and _check_venv(folder / spec.venv):
        return []  # check_files reports it
    python = name_python(spec, folder)
    needs_torch = b"torch" in script.read_bytes()
    if shell.which(str(folder / python) if "/" in python else python) is None:
        problem = f"Python not found: '{python}'"
    elif _is_own(python) or not (needs_torch or spec.python or spec.venv):
        return []
    else:
        problem = _try_python(python, shell, needs_torch=needs_torch)
    return [f"{problem}; choose another with --python, --venv or --conda"] if problem else []


def name_python(spec: JobSpec, folder: Path) -> str:
    """Return the ranks' Python, if neither conda, modules nor a prologue choose another. Pure."""
    return spec.python or (str(folder / spec.venv / "bin" / "python") if spec.venv else "python3")


def _try_python(python: str, shell: Shell, *, needs_torch: bool) -> str:
    look = "import importlib.util; print('torch', importlib.util.find_spec('torch') is not None)"
    try:
        done = shell.run([python, "-"], stdin=look, timeout_s=60)
    except (MissingProgramError, OSError) as error:
        return f"'{python}' cannot be executed: {error}"
    if not done.stdout.startswith("torch "):
        line = next(iter(done.stderr.splitlines()), "it printed nothing")[:_SHOWN]
        return f"'{python}' is not a working Python: {line}"
    if needs_torch and "True" not in done.stdout:
        return f"the Python '{python}' has no torch: run {python} -m pip install torch"
    return ""


def _is_own(python: str) -> bool:
    """Tell whether a Python is the one that runs this command, and has torch."""
    return python == sys.executable and importlib.util.find_spec("torch") is not None


def find_problems(spec: JobSpec, folder: Path, shell: Shell) -> list[str]:
    """Return the problems of a request for a script."""
    return [*check_files(spec, folder), *_check_array(spec), *check_python(spec, folder, shell)]


def find_function_problems(spec: JobSpec, folder: Path, shell: Shell, *, version: str) -> list[str]:
    """Return the problems of a request for a function.

    Args:
        spec: the request.
        folder: its working directory.
        shell: runs the request's Python.
        version: the Python version of the function, such as 3.11.
    """
    found = [*check_files(replace(spec, module=True), folder), *_check_array(spec)]
    if spec.style != "echelon":
        found.append(f"a function needs the style 'echelon', not '{spec.style}'")
    # The Python of a virtual environment or a prologue is not known before the job starts.
    python = spec.python or ("" if spec.venv or spec.prologue else sys.executable)
    differs = python != sys.executable or version != "{}.{}".format(*sys.version_info)
    if python and differs and not (spec.conda or spec.modules):
        found += _check_version(python, version, shell)
    return found


def _check_array(spec: JobSpec) -> list[str]:
    """Report a job array that no sweep was made of: all its tasks would be the same run."""
    if split_array(spec)[1] is None:
        return []
    what = "only echelon submit accepts job arrays (--array)"
    return [f"{what}: start a sweep with echelon sweep, or use --style srun"]


def _check_version(python: str, wanted: str, shell: Shell) -> list[str]:
    look = "import sys; print('{}.{}'.format(*sys.version_info))"
    try:
        done = shell.run([python, "-c", look], timeout_s=60)
    except MissingProgramError:
        return [f"Python not found: '{python}'"]
    found = done.stdout.strip()
    if done.code or found == wanted:
        return []
    return [f"{python} is Python {found}, and cannot read a function of Python {wanted}"]


def check_sweep(spec: JobSpec, names: Sequence[str]) -> None:
    """Check that a sweep supports a request.

    Raises:
        UsageError: it does not.
    """
    check_placeholders(spec.args, names)
    if spec.style != "echelon":
        raise UsageError(
            f"a sweep does not support style '{spec.style}'", hint="use --style echelon"
        )
    if spec.hand_over == "always":
        raise UsageError(
            "a sweep does not support hand_over 'always': a task continues in its own array",
            hint="use --hand-over requeue; auto does so if there is a checkpoint",
        )


def check_pack(spec: JobSpec, table: Table, on: str) -> None:
    """Check that the tasks of a sweep can share one job.

    Raises:
        UsageError: they cannot.
    """
    if on == "ray":
        raise UsageError(
            "--pack is for Slurm and for this machine: Ray places tasks itself",
            hint="remove --pack; --max-running limits how many tasks run at a time",
        )
    if spec.nodes.high > table.pack:
        raise UsageError(
            f"a task needs {spec.nodes.high} nodes, but --pack {table.pack} requests fewer",
            hint=f"use --pack {spec.nodes.high} or more",
        )
    if table.max_running:
        raise UsageError(
            "--max-running has no effect with --pack: as many tasks run as there are slots",
            hint="remove --max-running, or request fewer nodes: --pack N",
        )


# --- with `echelon lint` ---------------------------------------------------------------------


def examine_script(spec: JobSpec, folder: Path, command: str, *, lints: bool = False) -> list[str]:
    """Return the errors that certainly end the script of a request; none without `lints`.

    Raises:
        UsageError: there is no script, or it is a job script.
    """
    if not spec.script:
        raise UsageError("no training script given", hint=f"echelon {command} --nodes 2 SCRIPT.py")
    if spec.module:
        return []
    script = folder / spec.script
    refuse_job_script(script, command)
    return check_script(script) if lints and script.suffix == ".py" else []


def check_script(script: Path) -> list[str]:
    """Return the errors that certainly end a Python script, and print the others as warnings."""
    errors = _find_errors(script)
    certain = [one for one in errors if one.code == _NAMES and one.severity == "error"]
    _warn([error for error in errors if error not in certain])
    return [
        f"{error.path}:{error.line}: {error.what.rstrip('.')} ({error.code}; if you know better, "
        f"add the comment: # echelon: ignore {error.code})"
        for error in certain
    ]


def refuse_job_script(script: Path, command: str) -> None:
    """Refuse a job script as the training script, because each rank would execute all of it.

    Raises:
        UsageError: the script has #SBATCH lines.
    """
    try:
        head = script.read_bytes()[:65536]
    except OSError:
        return  # reported as a missing script
    if head.startswith(b"#!") and re.search(rb"^#SBATCH\s", head, re.MULTILINE):
        raise UsageError(
            f"{script.name} is a job script with #SBATCH lines, not a training script",
            hint=f"did you mean: echelon {command} --from {shlex.quote(os.path.relpath(script))}",
        )


def mention_directives(script: Path) -> None:
    """Warn about #SBATCH directives that Slurm, and therefore --from, ignores or misreads."""
    _warn([error for error in _find_errors(script) if error.code in ("E102", "E106")])


def _find_errors(script: Path) -> "list[Finding]":
    """Return the errors in a script, and all its undefined names.

    Return nothing if the file is not text, or the extra `lint` is not installed.
    """
    try:
        from echelon.lint.files import DiskFiles  # noqa: PLC0415
        from echelon.lint.linting import lint  # noqa: PLC0415
        from echelon.lint.rule import Severity  # noqa: PLC0415
    except ModuleNotFoundError:
        return []
    text = DiskFiles().read(str(script))
    found = lint(text, path=str(script), files=DiskFiles()) if text else []
    own = [one for one in found if one.path == str(script)]
    return [one for one in own if one.severity is Severity.ERROR or one.code == _NAMES]


def _warn(errors: "list[Finding]") -> None:
    for error in errors:
        note(f"warning: {error.path}:{error.line}: {error.code}: {error.what}")
