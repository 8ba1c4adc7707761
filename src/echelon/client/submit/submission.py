"""Check a request, create its run and start it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from echelon.client.code.snapshot import take_snapshot
from echelon.client.submit.environments import find_environment
from echelon.client.submit.images import settle_image
from echelon.client.submit.parameters import take_array
from echelon.client.submit.places import choose_cluster, choose_spec
from echelon.client.submit.runs import TakeCode, check_files, check_python, prepare_run, submit_run
from echelon.client.submit.script_checks import check_script, refuse_job_script
from echelon.clusters.base import Cluster
from echelon.clusters.local import LocalCluster
from echelon.core import userstate
from echelon.core.atomic_file import remove_tree
from echelon.core.frozen import frozen
from echelon.core.notes import note
from echelon.core.ownership import find_intruder
from echelon.core.shell import LocalShell, Shell
from echelon.errors import MissingProgramError, UsageError
from echelon.run.code import Code
from echelon.run.directory import RunDir
from echelon.run.sweep import Table
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged


@frozen
class Place:
    """Where runs are started."""

    on: str = "slurm"
    """`slurm`, `ray` or `local`."""
    runs: Path = Path("runs")
    """The directory of runs."""
    address: str = ""
    """Ray's dashboard."""


def submit_request(request: Merged, place: Place) -> tuple[RunDir, str, Cluster]:
    """Check a request and start a run of it; return the run, its job's id and its cluster."""
    spec, cluster = settle_request(request, place)
    check_request(spec, cluster, "submit")
    return *start_run(spec, cluster, place.runs, os.environ), cluster


def settle_request(request: Merged, place: Place) -> tuple[JobSpec, Cluster]:
    """Return a request with what is chosen for it, and its cluster."""
    cluster = choose_cluster(place.on, place.runs, address=place.address)
    return choose_snapshot(choose_spec(request, place.on, os.environ)), cluster


def start_run(
    spec: JobSpec,
    cluster: Cluster,
    runs: Path,
    environ: Mapping[str, str],
    *,
    take_code: TakeCode | None = None,
    added: Mapping[str, bytes] | None = None,
    run_id: str = "",
) -> tuple[RunDir, str]:
    """Create a run and start it; return it and its job's id. See `create_run`."""
    here = isinstance(cluster, LocalCluster)  # its agent says the same, a second later
    run = create_run(
        *(spec, runs, environ),
        take_code=take_code,
        added=added,
        run_id=run_id,
        looks_inside=not here,
    )
    try:
        return run, submit_run(run, cluster, environ, run.script.read_bytes()).job_id
    except UsageError:
        remove_tree(run.path)  # the cluster refused the request
        raise


def create_run(
    spec: JobSpec,
    runs: Path,
    environ: Mapping[str, str],
    *,
    take_code: TakeCode | None = None,
    added: Mapping[str, bytes] | None = None,
    run_id: str = "",
    table: Table | None = None,
    looks_inside: bool = True,
) -> RunDir:
    """Create the directory of a run or sweep, which the user may then submit.

    Args:
        spec: the request.
        runs: the directory of runs.
        environ: environment variables of the job.
        take_code: puts the code into the run directory; by default a copy of the project, if the
            request says so.
        added: files beside the project's, path → content; the script is one of them.
        run_id: its name; empty for a new one.
        table: the parameters of a sweep.
        looks_inside: check the Python of a container image, if it can be started here.
    """
    folder = Path(spec.chdir or Path.cwd()).absolute()
    spec = settle_image(spec, folder, environ, LocalShell(), looks_inside=looks_inside)

    def take(run: RunDir) -> Code | None:
        if not spec.snapshot and not added:
            return None
        return take_snapshot(run, spec, folder, LocalShell(), added=added)

    run, _ = prepare_run(
        spec,
        runs.absolute(),
        folder,
        conda_exe=environ.get("CONDA_EXE", ""),
        take_code=take_code or take,
        environment=find_environment(spec, folder, LocalShell()) if spec.stage else None,
        run_id=run_id,
        table=table,
    )
    if spec.snapshot and not run.code.exists():
        note(f"no copy of the code: '{spec.script}' is a program on PATH, not a file")
    if why := find_intruder(run.path):
        note(
            f"warning: other users can replace your run directories: {why}. Jobs on Slurm and Ray "
            "execute only what you submitted, but logs and checkpoints are not protected "
            "(choose another directory with --runs-dir)"
        )
    remember(run, run.script.read_bytes())
    return run


def choose_snapshot(spec: JobSpec, *, default: bool = True) -> JobSpec:
    """Return a request that says whether the run gets a copy of the code."""
    return replace(spec, snapshot=default) if spec.snapshot is None else spec


def check_array(spec: JobSpec) -> list[str]:
    """Report a job array, where all its tasks would be one run."""
    if take_array(spec) is None:
        return []
    what = "only echelon submit accepts job arrays (--array)"
    return [f"{what}: start a sweep with echelon sweep, or use --style srun"]


def remember(run: RunDir, script: bytes) -> None:
    """Record that the user submitted a script, so that the run can be resumed."""
    if why := userstate.remember(script, os.environ):
        note(f"warning: to resume {run.run_id} you will need --trust: {why}")


def check_request(spec: JobSpec, cluster: Cluster, command: str, *, lints: bool = True) -> None:
    """Report all problems of a request before anything is started."""
    if not spec.script:
        raise UsageError("no training script given", hint=f"echelon {command} --nodes 2 SCRIPT.py")
    folder = Path(spec.chdir or Path.cwd())
    script = folder / spec.script
    if not spec.module:
        refuse_job_script(script, command)
    lints = lints and command == "submit" and script.suffix == ".py" and not spec.module
    problems = [
        *check_files(spec, folder),
        *check_array(spec),
        *(check_script(script) if lints else ()),
        *check_python(spec, folder, LocalShell()),
        *cluster.problems(spec),
    ]
    if problems:
        raise UsageError(
            "; ".join(problems),
            hint="nothing was started; show the origin of each value: echelon config",
        )


def check_function(
    spec: JobSpec, folder: Path, cluster: Cluster, shell: Shell, *, version: str = ""
) -> None:
    """Report what is wrong with a request for a function, before anything is started.

    Args:
        spec: the request.
        folder: its working directory.
        cluster: where it will run.
        shell: runs the request's Python.
        version: the Python version of the function, such as 3.11; by default the one of this
            process.
    """
    own = "{}.{}".format(*sys.version_info)
    problems = [
        *check_files(replace(spec, module=True), folder),
        *check_array(spec),
        *cluster.problems(spec),
    ]
    if spec.style != "echelon":
        problems.append(f"a function needs the style 'echelon', not '{spec.style}'")
    # Another environment has its own Python, which is not asked here.
    python = spec.python or ("" if spec.venv or spec.prologue else sys.executable)
    differs = python != sys.executable or version not in ("", own)
    if python and differs and not (spec.conda or spec.modules):
        problems += _check_version(python, version or own, shell)
    if problems:
        raise UsageError("; ".join(problems), hint="nothing was started; change the request")


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
