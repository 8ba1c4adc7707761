"""Starts runs: request → checked → prepared → submitted, each a frozen value.

`echelon submit`, `run` and `sweep`, functions from Python, and the host of a submission from
another machine take all steps. `--dry-run` stops after `check`. `rerun` checks the request of an
earlier run with `check_again`, and `resume` submits its next attempt with `queue_attempt`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from echelon.client.code.snapshot import copy_again, take_snapshot
from echelon.client.submit.checks import (
    check_pack,
    check_sweep,
    examine_script,
    find_function_problems,
    find_problems,
)
from echelon.client.submit.images import settle_image
from echelon.client.submit.parameters import split_array
from echelon.client.submit.run_files import (
    find_environment,
    new_run_id,
    pack_request,
    write_files,
)
from echelon.client.submit.target import Target, choose_cluster, choose_spec
from echelon.clusters.base import Cluster, queue_attempt
from echelon.clusters.local import LocalCluster, fit_allocation
from echelon.core import userstate
from echelon.core.atomic_file import remove_tree
from echelon.core.frozen import frozen
from echelon.core.notes import note
from echelon.core.ownership import find_intruder
from echelon.core.shell import LocalShell
from echelon.errors import EchelonError, UsageError
from echelon.launch.function_call import ABOUT, FOLDER
from echelon.run.code import Code
from echelon.run.directory import RunDir
from echelon.run.request import read_code
from echelon.run.sweep import SweepDir, Table
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged

# --- the values -------------------------------------------------------------------------------


@frozen
class Request:
    """What to start, and where."""

    merged: Merged
    target: Target
    command: str = "submit"
    """The command that starts the run, for hints of errors."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables of the job."""
    table: Table | None = None
    """The parameters of each task of a sweep; None for a single run."""
    added: Mapping[str, bytes] = field(default_factory=dict)
    """The files of a function, path → content, which are added to the project's."""
    run_id: str = ""
    """The id of the run; empty for a new one."""
    lints: bool = False
    """Whether to examine the script as `echelon lint` does."""
    takes_array: bool = False
    """Whether a job array of the request becomes a sweep."""


@frozen
class Checked:
    """A request without problems, with its cluster and all defaults."""

    spec: JobSpec
    cluster: Cluster
    runs: Path
    """The directory of runs."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    table: Table | None = None
    added: Mapping[str, bytes] = field(default_factory=dict)
    run_id: str = ""
    earlier: RunDir | None = None
    """The run whose code is executed again; None for the project as it is now."""

    @property
    def folder(self) -> Path:
        """The working directory."""
        return Path(self.spec.chdir or Path.cwd()).absolute()


@frozen
class Prepared:
    """A run directory with the code, request and script that its jobs execute."""

    run: RunDir
    cluster: Cluster
    environ: Mapping[str, str]
    script: bytes
    """The content of the script, so that a change of the file is not executed."""
    table: Table | None = None

    @property
    def sweep(self) -> SweepDir:
        """The sweep; only valid with a table."""
        return SweepDir(files=self.run)


@frozen
class Submitted:
    """A run whose first job is queued or started."""

    run: RunDir
    cluster: Cluster
    job_id: str


# --- check ------------------------------------------------------------------------------------


def check(request: Request) -> Checked:
    """Add defaults to a request, and report all its problems.

    Raises:
        UsageError: the request cannot be started.
    """
    target, environ = request.target, request.environ
    spec = choose_spec(request.merged, target.on, environ)
    in_foreground = request.command == "run" and target.on not in ("slurm", "ray")
    if spec.snapshot is None:
        spec = replace(spec, snapshot=not in_foreground)
    if in_foreground:
        asked = request.merged.origins["nodes"] != "default"
        spec, environ = fit_allocation(spec, environ, asked=asked)
    cluster = choose_cluster(
        target.on, target.runs, address=target.address, tied=target.tied, environ=environ
    )
    table = request.table
    single = spec
    if request.takes_array and target.on == "slurm":
        single, table = split_array(spec)
    if table is not None:
        check_sweep(single, table.names)
    if table is not None and table.pack:
        check_pack(single, table, target.on)
        single = pack_request(single, table.pack)
    checked = Checked(
        spec=spec,
        cluster=cluster,
        runs=target.runs,
        environ=environ,
        table=table,
        added=request.added,
        run_id=request.run_id,
    )
    _raise_problems(replace(checked, spec=single), request.command, lints=request.lints)
    return checked


def check_again(
    earlier: RunDir, spec: JobSpec, cluster: Cluster, *, same_code: bool, run_id: str = ""
) -> Checked:
    """Check the request of an earlier run, perhaps with changes.

    Raises:
        UsageError: the request cannot be started.
    """
    checked = Checked(
        spec=spec,
        cluster=cluster,
        runs=earlier.path.parent,
        run_id=run_id,
        earlier=earlier if same_code else None,
    )
    _raise_problems(checked, "rerun", lints=False)
    return checked


def _raise_problems(checked: Checked, command: str, *, lints: bool) -> None:
    spec, folder, shell = checked.spec, checked.folder, LocalShell()
    if checked.earlier:
        missing = f"the working directory {folder} does not exist: choose another with --chdir"
        problems = [] if folder.is_dir() else [missing]
    elif checked.added:
        version = str(json.loads(checked.added[f"{FOLDER}/{ABOUT}"])["python"])
        problems = find_function_problems(spec, folder, shell, version=version)
    else:
        problems = examine_script(spec, folder, command, lints=lints)
        problems += find_problems(spec, folder, shell)
    try:
        problems = [*problems, *checked.cluster.problems(spec)]
    except EchelonError as error:
        if not problems:
            raise
        problems = [*problems, error.message]  # it must not hide the others
    if problems:
        raise UsageError(
            "; ".join(problems),
            hint="nothing was started; show the origin of each value: echelon config",
        )


# --- prepare ----------------------------------------------------------------------------------


def prepare(checked: Checked) -> Prepared:
    """Create the directory of a run or sweep with its code, request and script."""
    spec, folder, shell = split_array(checked.spec)[0], checked.folder, LocalShell()
    # The agent of a run on this machine checks the image itself, a second later.
    here = isinstance(checked.cluster, LocalCluster)
    spec = settle_image(spec, folder, checked.environ, shell, looks_inside=not here)
    environment = find_environment(spec, folder, shell)
    run = RunDir.create(checked.runs.absolute(), checked.run_id or new_run_id(spec))
    try:
        code = _take_code(checked, run, spec)
        script = write_files(
            run,
            spec,
            folder,
            code=code,
            table=checked.table,
            environment=environment,
            conda_exe=checked.environ.get("CONDA_EXE", ""),
        )
    except BaseException as error:
        remove_tree(run.path)  # leave no incomplete run
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(run.path)  # the error of a failed write has no file name
        raise
    if spec.snapshot and not run.code.exists():
        note(f"no copy of the code: '{spec.script}' is a program on PATH, not a file")
    if why := find_intruder(run.path):
        note(
            f"warning: other users can replace your run directories: {why}. Jobs on Slurm and Ray "
            "execute only what you submitted, but logs and checkpoints are not protected "
            "(choose another directory with --runs-dir)"
        )
    remember(run, script)
    if checked.table and checked.table.pack:
        remember(run, SweepDir(files=run).task_script.read_bytes())
    return Prepared(
        run=run,
        cluster=checked.cluster,
        environ=checked.environ,
        script=script,
        table=checked.table,
    )


def _take_code(checked: Checked, run: RunDir, spec: JobSpec) -> Code | None:
    """Put the code into a run directory; return None if the run executes the project itself."""
    if checked.earlier:
        copy_again(checked.earlier, run)
        return read_code(checked.earlier)
    if not spec.snapshot and not checked.added:
        return None
    return take_snapshot(run, spec, checked.folder, LocalShell(), added=checked.added)


def remember(run: RunDir, script: bytes) -> None:
    """Record that the user submitted a script, so that the run can be resumed."""
    if why := userstate.remember(script, os.environ):
        note(f"warning: to resume {run.run_id} you will need --trust: {why}")


# --- submit -----------------------------------------------------------------------------------


def submit(prepared: Prepared) -> Submitted:
    """Queue or start the first job of a run.

    Raises:
        UsageError: the cluster refuses the request; the run is removed.
    """
    run, cluster = prepared.run, prepared.cluster
    try:
        attempt = queue_attempt(run, cluster, prepared.environ, prepared.script)
    except UsageError:
        remove_tree(run.path)
        raise
    return Submitted(run=run, cluster=cluster, job_id=attempt.job_id)
