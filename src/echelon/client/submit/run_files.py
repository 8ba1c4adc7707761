"""Names a new run, and writes its files: its request, its script and the launcher."""

import hashlib
import re
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from echelon.client.submit.checks import name_python
from echelon.client.submit.launcher import ship_launcher
from echelon.clusters.slurm.styles import Shipped, render_script
from echelon.core.atomic_file import encode, write_atomic
from echelon.core.shell import Shell
from echelon.errors import EchelonError
from echelon.launch.program import find_program
from echelon.launch.stage.manifest import SYSTEM, describe_folder
from echelon.run.code import Code, find_copy
from echelon.run.directory import RunDir
from echelon.run.request import Environment, render_spec
from echelon.run.sweep import SweepDir, Table, write_table
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount

_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"
"""Letters and digits that are not easily confused."""
_LOOK = "import sys; print(sys.prefix)"


def write_files(
    run: RunDir,
    spec: JobSpec,
    folder: Path,
    *,
    code: Code | None,
    table: Table | None,
    environment: Environment | None,
    conda_exe: str,
) -> bytes:
    """Write the files of a run or sweep, and return its script.

    Args:
        run: its directory, which already has the code.
        spec: the request.
        folder: the working directory.
        code: the copy of the code; None if the run executes the project itself.
        table: the parameters of a sweep; None for a single run.
        environment: the ranks' environment to stage; None if it is not known.
        conda_exe: the path of the user's conda; empty without one.
    """
    tasks = write_table(SweepDir(files=run), table) if table else ""
    frozen = freeze_request(run, spec, folder, has_copy=code is not None)
    request = encode(render_spec(frozen, code, tasks=tasks, environment=environment))
    write_atomic(run.spec, request)
    copy = find_copy(run, code, frozen.chdir)
    starts = spec.style == "echelon" or code is not None
    shipped = Shipped(
        run=str(run.path.absolute()),
        launcher=ship_launcher(run.launcher) if starts else "",
        request=hashlib.sha256(request).hexdigest(),
        role="task" if tasks else "controller",
        program=find_program(frozen, copy).argv[0] if copy else "",
    )
    script = encode(render_script(frozen, shipped=shipped, conda_exe=conda_exe))
    if table and table.pack:  # the runs of tasks derive their scripts from that of an array
        write_atomic(SweepDir(files=run).task_script, script, mode=0o700)
        shared = pack_request(frozen, table.pack)
        whole = replace(shipped, role="broker")
        script = encode(render_script(shared, shipped=whole, conda_exe=conda_exe))
    write_atomic(run.script, script, mode=0o700)
    return script


def pack_request(spec: JobSpec, nodes: int) -> JobSpec:
    """Return the request of the job of a packed sweep: whole nodes, which its tasks share. Pure."""
    whole = {"exclusive": "", "mem": "0"}
    return replace(
        spec,
        nodes=NodeCount(nodes, nodes),
        procs=1,
        gpus=0,
        gpu_type="",
        cpus_per_task=0,
        slurm_extra={**whole, **spec.slurm_extra},
    )


def freeze_request(run: RunDir, spec: JobSpec, folder: Path, *, has_copy: bool) -> JobSpec:
    """Return a request for a run's file, independent of the directory where jobs start. Pure."""
    frozen = replace(
        spec,
        chdir=str(folder),
        # Slurm also expands % in the directory's name.
        output=spec.output or f"{str(run.logs).replace('%', '%%')}/job-%j.out",
        snapshot=has_copy,
    )
    if spec.style == "echelon":
        return frozen
    return replace(frozen, env={"SLURM_LABELIO": "1", **spec.env})  # srun labels each task's lines


def find_environment(spec: JobSpec, folder: Path, shell: Shell) -> Environment | None:
    """Return the environment to stage; None if only the nodes can determine it.

    With its digest, nodes that have a copy of the environment do not read storage.

    Args:
        spec: the request.
        folder: the job's directory.
        shell: runs another Python.
    """
    if not spec.stage or spec.image or spec.conda or spec.modules or spec.prologue:
        return None
    python = name_python(spec, folder)
    try:
        prefix = sys.prefix
        if python != sys.executable:
            prefix = shell.run([python, "-c", _LOOK], timeout_s=60).check().stdout.strip()
        if prefix in SYSTEM:
            return None
        return Environment(prefix=prefix, digest=describe_folder(Path(prefix)).digest)
    except (EchelonError, OSError):
        return None


# --- its id -----------------------------------------------------------------------------------


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
