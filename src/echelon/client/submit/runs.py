"""Create, submit and query runs."""

import contextlib
import hashlib
import importlib.util
import io
import marshal
import re
import secrets
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

from echelon import _version
from echelon.clusters.base import Cluster
from echelon.clusters.slurm.styles import Shipped, render_script
from echelon.core.atomic_file import encode, remove_tree, write_atomic
from echelon.core.records import read_bytes
from echelon.core.shell import Shell
from echelon.errors import MissingProgramError
from echelon.launch.protocol.program import find_program
from echelon.run.attempts import (
    Attempt,
    submit_attempt,
)
from echelon.run.code import Code, find_copy
from echelon.run.directory import RunDir
from echelon.run.request import Environment, read_spec, render_spec
from echelon.run.sweep import SweepDir, Table, write_table
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import nearest

_NAMED = 8
"""Number of file names that are suggested for a missing script."""
_SHOWN = 200
"""Characters of a program's message that are shown."""
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
"""Letters and digits that are not easily confused."""


def new_run_id(spec: JobSpec) -> str:
    """Return an id for a run: the job's name and four random letters."""
    return name_run(_stem(spec))


def name_run(stem: str) -> str:
    """Return an id with a given beginning."""
    return f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"


def may_be_named(name: str, spec: JobSpec) -> bool:
    """Tell whether a run with this request can have this id."""
    return re.fullmatch(rf"{re.escape(_stem(spec))}-[{_LETTERS}]{{4}}", name) is not None


def _stem(spec: JobSpec) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", spec.job_name).strip("-.")[:40] or "run"


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
    """Suggest the file that was probably meant."""
    beside = sorted(path.name for path in script.parent.glob("*.py"))[:_NAMED]
    return nearest(script.name, beside) if beside else f"there is no .py file in {script.parent}"


def check_python(spec: JobSpec, folder: Path, shell: Shell) -> list[str]:
    """Report a missing Python of the ranks, or one without torch, if it can be known from here.

    With conda, modules or a prologue, this cannot be checked before the job starts.
    """
    script = folder / spec.script
    if spec.conda or spec.modules or spec.prologue or spec.image or not script.is_file():
        return []
    if spec.venv and not spec.python and _check_venv(folder / spec.venv):
        return []  # check_files reports it
    python = spec.python or (str(folder / spec.venv / "bin" / "python") if spec.venv else "python3")
    needs_torch = b"torch" in script.read_bytes()
    if shell.which(str(folder / python) if "/" in python else python) is None:
        problem = f"Python not found: '{python}'"
    elif _is_own(python) or not (needs_torch or spec.python or spec.venv):
        return []
    else:
        problem = _try_python(python, shell, needs_torch=needs_torch)
    return [f"{problem}; choose another with --python, --venv or --conda"] if problem else []


def _try_python(python: str, shell: Shell, *, needs_torch: bool) -> str:
    look = "import importlib.util; print('torch', importlib.util.find_spec('torch') is not None)"
    try:
        done = shell.run([python, "-"], stdin=look, timeout_s=60)
    except (MissingProgramError, OSError) as error:
        return f"'{python}' cannot be executed: {error}"
    if not done.stdout.startswith("torch "):
        said = next(iter(done.stderr.splitlines()), "it printed nothing")[:_SHOWN]
        return f"'{python}' is not a working Python: {said}"
    if needs_torch and "True" not in done.stdout:
        return f"the Python '{python}' has no torch: run {python} -m pip install torch"
    return ""


def _is_own(python: str) -> bool:
    """Tell whether it is the Python that runs this command, with torch."""
    return python == sys.executable and importlib.util.find_spec("torch") is not None


def choose_python(spec: JobSpec, environ: Mapping[str, str], *, inherits: bool) -> JobSpec:
    """Set the ranks' Python if the request names none: that of the active environment, or our own.

    Our own only if it has torch: the command may be installed in an environment of its own.

    Args:
        spec: the request.
        environ: our variables.
        inherits: whether the job inherits them, and finds an active environment on its PATH.
    """
    if spec.python or spec.venv or spec.conda or spec.modules or spec.prologue:
        return spec
    if spec.image:  # torch is in there; controller and agents need none
        return replace(spec, python=sys.executable)
    if prefix := environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX"):
        return spec if inherits else replace(spec, python=f"{prefix}/bin/python")
    if importlib.util.find_spec("torch") is None:
        return spec
    return replace(spec, python=sys.executable)


TakeCode = Callable[[RunDir], Code | None]
"""Puts the code into a run directory; returns None if the run executes the project itself."""


def prepare_run(
    spec: JobSpec,
    runs: Path,
    folder: Path,
    *,
    conda_exe: str = "",
    take_code: TakeCode = lambda _run: None,
    environment: Environment | None = None,
    run_id: str = "",
    table: Table | None = None,
) -> tuple[RunDir, JobSpec]:
    """Create a run directory with its code, request and script; submit nothing yet.

    With a table of parameters, it is that of a sweep.
    """
    run = RunDir.create(runs, run_id or new_run_id(spec))
    try:
        tasks = write_table(SweepDir(files=run), table) if table else ""
        code = take_code(run)
        return run, _fill(
            run,
            spec,
            folder,
            conda_exe=conda_exe,
            code=code,
            tasks=tasks,
            environment=environment,
        )
    except BaseException as error:
        remove_tree(run.path)  # leave no incomplete run
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(run.path)  # the system does not name the file of a failed write
        raise


def _fill(
    run: RunDir,
    spec: JobSpec,
    folder: Path,
    *,
    conda_exe: str,
    code: Code | None,
    tasks: str,
    environment: Environment | None,
) -> JobSpec:
    """Write a run's request and script; return the request as written."""
    frozen = replace(
        spec,
        chdir=str(Path(spec.chdir or folder).absolute()),
        # Slurm also expands % in the directory's name.
        output=spec.output or f"{str(run.logs).replace('%', '%%')}/job-%j.out",
    )
    if spec.style != "echelon":  # srun labels each line with its task
        frozen = replace(frozen, env={"SLURM_LABELIO": "1", **spec.env})
    frozen = replace(frozen, snapshot=code is not None)
    starts = spec.style == "echelon" or code is not None
    request = encode(render_spec(frozen, code, tasks=tasks, environment=environment))
    write_atomic(run.spec, request)
    copy = find_copy(run, code, frozen.chdir)
    shipped = Shipped(
        run=str(run.path.absolute()),
        launcher=ship_launcher(run.launcher) if starts else "",
        request=hashlib.sha256(request).hexdigest(),
        sweep=bool(tasks),
        program=find_program(frozen, copy).argv[0] if copy else "",
    )
    script = render_script(frozen, shipped=shipped, conda_exe=conda_exe)
    write_atomic(run.script, script, mode=0o700)
    return frozen


_SHIPPED = (
    *("__init__", "_version", "errors", "world", "train/probe"),
    *("core", "launch", "run", "spec"),
)
"""Modules and packages that run inside an allocation."""
_NVML = "pynvml"
"""NVIDIA's binding, a single file without dependencies."""


def ship_launcher(launcher: Path) -> str:
    """Write a copy of the job-side programs, and return its SHA-256.

    It is stored in the run directory, so it need not be installed on the nodes, runs in the ranks'
    own Python, and stays the same for the whole run. It is one file, so that many nodes read it
    quickly and one digest covers it: the text of launch/archive.py, then a zip archive.
    """
    source = Path(_version.__file__).parent
    found = [path for name in _SHIPPED for path in _sources(source / name)]
    shipped = {f"echelon/{path.relative_to(source)}": path for path in found}
    # The ranks' Python may lack it, and GPUs could then not be measured.
    # By its file: in a rank, the module itself may come from the launcher of its own run.
    nvml = PathFinder.find_spec(_NVML)
    if nvml is not None and nvml.origin is not None:
        shipped[f"{_NVML}.py"] = Path(nvml.origin)
    content = io.BytesIO()
    content.write((source / "launch" / "archive.py").read_bytes())
    with zipfile.ZipFile(content, "a") as archive:
        for name, path in shipped.items():
            archive.writestr(name, path.read_bytes())
            # Compiled once here instead of by every process on every node.
            archive.writestr(_bytecode_name(name), _compile(path))
    write_atomic(launcher, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _bytecode_name(name: str) -> str:
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".py")
    return f"{folder}/__pycache__/{stem}.{sys.implementation.cache_tag}.pyc".lstrip("/")


def _compile(path: Path) -> bytes:
    """Return a module's bytecode, marked so that Python does not check the source's age."""
    unchecked = (1).to_bytes(4, "little")
    head = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(path.read_bytes())
    return head + (_cached(path) or marshal.dumps(_load(path)))


def _cached(path: Path) -> bytes:
    """Return what Python has cached of a module, if that is up to date."""
    source = path.stat()
    times = (int(source.st_mtime), source.st_size)
    head = importlib.util.MAGIC_NUMBER + struct.pack(
        "<LLL", 0, *(one & 0xFFFFFFFF for one in times)
    )
    with contextlib.suppress(OSError):
        known = Path(importlib.util.cache_from_source(str(path))).read_bytes()
        return known.removeprefix(head) if known.startswith(head) else b""
    return b""


def _load(path: Path) -> CodeType | None:
    return SourceFileLoader(path.stem, str(path)).get_code(path.stem)


def submit_run(run: RunDir, cluster: Cluster, environ: Mapping[str, str], script: bytes) -> Attempt:
    """Submit the next attempt of a run, and record its job.

    Args:
        run: the run.
        cluster: where to submit it.
        environ: environment variables of the job.
        script: the run's script, as created or checked (`trust.read_script`).
    """
    exclude = cluster.exclusions(read_spec(run))

    def submit(number: int) -> str:
        return cluster.submit(
            run.script,
            content=script,
            run_id=run.run_id,
            attempt=number,
            environ=environ,
            exclude=exclude,
        )

    return submit_attempt(run, submit, lambda job_id: cluster.job(job_id, run_id=run.run_id))
