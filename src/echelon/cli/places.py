"""The options that say where runs are started."""

from typing import Annotated

import typer

from echelon.api.places import PLACES
from echelon.cli.completion import offer
from echelon.cli.help import CONFIGURATION

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLACE",
        help="Where to run: local, slurm or ray.",
        show_default=False,
        autocompletion=offer(PLACES[1:]),
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
