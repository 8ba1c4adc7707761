"""`echelon doctor`: check whether this machine, or the nodes of a job, are fit for training."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import CHECK, SectionedCommand
from echelon.cli.options import takes_keys
from echelon.cli.run_options import AsJson, RunsDir
from echelon.core.atomic_file import make_private
from echelon.core.nodes import expand
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from echelon.run.directory import RUNS
from echelon.spec.conflicts import TYPED
from echelon.spec.job_spec import KEYS, JobSpec
from echelon.spec.merging import Merged
from echelon.spec.readers import NodeCount

if TYPE_CHECKING:
    from echelon.launch.doctor.results import Examined

app = typer.Typer(rich_markup_mode=None)
_NODE_KEYS = (
    *("nodes", "gpus", "gpu_type", "gpu_option", "partition", "account", "qos", "constraint"),
    *("nodelist", "exclude", "cpus_per_task", "mem", "time", "python", "venv", "slurm.extra"),
)
"""Keys that select the nodes to examine."""


@app.command(cls=SectionedCommand, rich_help_panel=CHECK)
@takes_keys(*_NODE_KEYS)
def doctor(
    *,
    request: Merged,
    runs_dir: RunsDir = RUNS,
    short: Annotated[
        bool, typer.Option("--short", help="Skip the GPU measurements, as --preflight does.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find nodes that are broken, slow or different from the others.

    With --nodes, run a short job; inside an allocation, examine all its nodes; otherwise examine
    this machine. Exit with 0 if there are no findings, 1 after warnings, 3 after errors.

    Example: echelon doctor --nodes 4 --gpus 8 --partition a100
    """
    from echelon.launch.doctor import report  # noqa: PLC0415

    if request.host:
        raise typer.Exit(_examine_there(request, short=short, as_json=as_json))
    examined = _examine(request, runs_dir.absolute(), short=short)
    if as_json:
        console.print_json(report.to_record(examined))
    else:
        console.print_table(*report.render_table(examined))
        for part in report.render_summary(examined):
            console.print_result(part)
    raise typer.Exit(report.exit_code(examined.findings))


def _examine_there(request: Merged, *, short: bool, as_json: bool) -> int:
    """Run the doctor on the login host; it gets the settings as options, not as files."""
    from echelon.cli.remote import forward  # noqa: PLC0415
    from echelon.client.remote.remote_calls import make_site  # noqa: PLC0415

    site = make_site(request)
    assert site is not None, "only a request with a host is examined there"
    # A node count from a project file is for training jobs: it does not make the doctor a job.
    skipped = () if request.origins["nodes"] in TYPED else ("nodes",)
    settings = [
        f"--set={key}={KEYS[key].show(request.spec)}"
        for key in _NODE_KEYS
        if request.origins[key] != "default" and key not in (*skipped, "slurm.extra")
    ]
    settings += [
        f"--set=slurm.extra.{name}={text}" for name, text in request.spec.slurm_extra.items()
    ]
    flags = [*(["--short"] if short else []), *(["--json"] if as_json else [])]
    return forward(site, ["doctor", "--config=/dev/null", *settings, *flags], attached=True)


def _examine(request: Merged, runs: Path, *, short: bool) -> "Examined":
    import asyncio  # noqa: PLC0415

    from echelon.launch.backends.choosing import choose_backend  # noqa: PLC0415
    from echelon.launch.backends.stop import StopError  # noqa: PLC0415
    from echelon.launch.doctor.examination import Examination  # noqa: PLC0415
    from echelon.launch.doctor.first_look import Setup  # noqa: PLC0415
    from echelon.launch.roles import launcher_command  # noqa: PLC0415

    shell, python = LocalShell(), choose_interpreter(request.spec, os.environ)
    with _make_folders(runs) as (folder, scratch, digest), _nodes(request, os.environ) as environ:
        setup = Setup(
            shell=shell,
            starter=choose_backend(shell, environ).starter,
            environ=environ,
            probe=launcher_command(python, digest, folder / "launcher", "doctor-probe"),
            folder=folder,
            python=python,
            scratch=scratch,
            tell=_progress,
            short=short,
        )
        try:
            return asyncio.run(Examination(setup).run())
        except StopError as error:
            console.note("doctor: stopped")
            raise typer.Exit(error.stop.exit_code) from error


def _progress(text: str) -> None:
    console.note(f"doctor: {text}")


@contextlib.contextmanager
def _make_folders(runs: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield two new directories and the launcher's digest.

    The first directory is beside the runs and contains the launcher. The second is local.
    """
    from echelon.client.submit.launcher import ship_launcher  # noqa: PLC0415

    made = not runs.exists()
    make_private(runs)
    folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=runs))
    scratch = Path(tempfile.mkdtemp(prefix="echelon-doctor-"))
    try:
        yield folder, scratch, ship_launcher(folder / "launcher")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # it is not empty any more
                runs.rmdir()


@contextlib.contextmanager
def _nodes(request: Merged, environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Hold the requested nodes; yield the environment of a process in their allocation."""
    from echelon.clusters.local import fit_allocation  # noqa: PLC0415
    from echelon.clusters.slurm.allocating import hold_nodes  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    asked = request.origins["nodes"] in TYPED
    if "SLURM_JOB_ID" in environ and "SLURM_JOB_NODELIST" in environ:
        yield fit_allocation(request.spec, environ, asked=asked)[1]
    elif asked or request.origins["nodelist"] in TYPED:
        spec = count_nodes(request.spec, asked=asked)
        if problems := SlurmCluster(LocalShell(), environ, tell=_progress).problems(spec):
            raise UsageError("; ".join(problems), hint="list partitions and nodes with: sinfo")
        with hold_nodes(spec, LocalShell(), environ, tell=_progress) as held:
            yield held
    else:
        yield environ


def count_nodes(spec: JobSpec, *, asked: bool) -> JobSpec:
    """Return a request for the given number of nodes, or for all nodes of --nodelist."""
    if asked:
        return spec
    count = len(expand(spec.nodelist))
    return replace(spec, nodes=NodeCount(count, count))


def choose_interpreter(spec: JobSpec, environ: Mapping[str, str]) -> str:
    """Return the Python of the ranks: --python, the environment's, or the one of this process."""
    if spec.python:
        found = shutil.which(spec.python, path=environ.get("PATH"))
        return str(Path(found or spec.python).absolute())
    for folder in (spec.venv, environ.get("VIRTUAL_ENV", "")):
        if folder:
            return str(Path(folder, "bin", "python").absolute())
    return sys.executable
