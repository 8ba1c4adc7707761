"""Options that several commands share: the run, where runs are, and how to wait for one."""

import os
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.completion import complete_run, offer
from echelon.cli.help import CONFIGURATION
from echelon.client.submit.target import TARGETS
from echelon.errors import UsageError
from echelon.run.directory import RUNS
from echelon.spec.merging import Merged

RunsDir = Annotated[
    Path,
    typer.Option(
        "--runs-dir",
        metavar="DIR",
        envvar="ECHELON_RUNS_DIR",
        help="Directory of runs.",
        rich_help_panel=CONFIGURATION,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        help="Run id or a unique prefix, a job id, or last.", autocompletion=complete_run
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run and exit with its status.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print the run's output while waiting.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute the run's files even if you did not submit them.")
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="Where to run: local, slurm or ray.",
        show_default=False,
        autocompletion=offer(TARGETS[1:]),
    ),
]
NewAddress = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="URL",
        help="New Ray dashboard URL, for a run on Ray.",
        show_default=False,
    ),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Ray dashboard URL, such as http://HEAD:8265 (with --on ray).",
        show_default=False,
        rich_help_panel=CONFIGURATION,
    ),
]


def goes_to_host(request: Merged, on: str, runs_dir: Path) -> bool:
    """Tell whether a request is submitted on another machine.

    Raises:
        UsageError: a directory of this machine is named for its runs.
    """
    if not request.host or on != "slurm":
        return False
    if runs_dir not in (RUNS, Path(os.environ.get("ECHELON_RUNS_DIR", ""))):
        raise UsageError(
            f"--runs-dir names a directory of this machine, but the run goes to {request.host}",
            hint="remove it: the runs there are in the profile's workdir, in `runs`",
        )
    return True
