"""`echelon report`: where a run's time went, and what to change."""

from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.runs import RUNS, Run, RunsDir

app = typer.Typer(rich_markup_mode=None)


@app.command()
def report(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="For programs to read.")] = False,
) -> None:
    """Tell where a run's time went, what it cost, and what to change in how it is asked for.

    Example: echelon report last
    """
    from echelon.clusters.runs import find_run  # noqa: PLC0415
    from echelon.monitor.report import make_report, render, to_record  # noqa: PLC0415

    found = make_report(find_run(runs_dir, run))
    if as_json:
        console.print_json(to_record(found))
    else:
        console.print_result(render(found))
