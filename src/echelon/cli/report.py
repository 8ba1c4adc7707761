"""`echelon report`: where a run's time went, and what to change."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.runs import RUNS, Run, RunsDir
from echelon.core.atomic_file import write_atomic
from echelon.errors import UnavailableError

if TYPE_CHECKING:
    from echelon.monitor.report import Report

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=LOOK)
def report(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Output JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML file.")
    ] = None,
) -> None:
    """Show where a run's time went, and what to change.

    Example: echelon report last
    """
    from echelon.monitor.report import make_report, render, to_record  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    found = make_report(find_run(runs_dir, run))
    if html is not None:
        _write_page(found, html)
    elif as_json:
        console.print_json(to_record(found))
    else:
        console.print_result(render(found))


def _write_page(found: "Report", path: Path) -> None:
    from echelon.monitor.page_report import render_page  # noqa: PLC0415

    try:
        write_atomic(path, render_page(found, now_s=time.time()))
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}: {error.strerror}", hint="choose another place: --html FILE"
        ) from error
    console.note(f"written: {path}")
