"""`echelon fetch`: bring files of a run to this machine."""

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.run_options import ClusterName, HostName, Run
from echelon.client.manage.locate import locate
from echelon.client.remote.host_files import bring_files
from echelon.client.remote.remote_calls import ProgressNotes
from echelon.core.units import counted, format_bytes
from echelon.errors import UsageError
from echelon.run.directory import RUNS

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=LOOK)
def fetch(
    run: Run = "last",
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATTERN]...",
            help="Files of the run, such as checkpoints or 'logs/*/rank-00000.log' "
            "[default: everything but code and checkpoints].",
            show_default=False,
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory to put them in [default: RUN].", show_default=False
        ),
    ] = None,
    cluster: ClusterName = "",
    host: HostName = "",
) -> None:
    """Copy files of a run on another host to this machine.

    If it was interrupted, the same command continues it.

    Example: echelon fetch last metrics.jsonl checkpoints
    """
    site, name = locate(run, RUNS, cluster, host)
    if site is None:
        raise UsageError(
            f"the run '{run}' was not submitted to another host from here",
            hint="name the host: --cluster NAME or --host HOST; to list runs: echelon ps",
        )
    # With its request, a folder is known as a run, and not sent back as code of the project.
    wanted = [*patterns, "spec.toml", "job.sbatch"] if patterns else []
    folder, found = bring_files(
        site, name, wanted, lambda run_id: to or Path(run_id), ProgressNotes()
    )
    for warning in found.warnings:
        console.note(f"warning: {warning}")
    console.print_result(str(folder))
    console.note(
        f"{counted(found.files, 'file')} with {format_bytes(found.size)} transferred, "
        f"{found.unchanged:,} already here"
    )
