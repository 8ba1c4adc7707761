"""The options that say where runs are started."""

import os
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.completion import offer
from echelon.cli.help import CONFIGURATION
from echelon.client.submit.target import TARGETS
from echelon.errors import UsageError
from echelon.run.directory import RUNS
from echelon.spec.merging import Merged

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
