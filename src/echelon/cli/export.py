"""`echelon export`: a run's figures as files for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.runs import RUNS, Run, RunsDir
from echelon.errors import ConflictError, NotFoundError, UsageError

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=LOOK)
def export(
    run: Run = "last",
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Output directory [default: RUN-csv].", show_default=False
        ),
    ] = None,
    *,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV files.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    runs_dir: RunsDir = RUNS,
) -> None:
    """Write a run's figures as CSV files.

    metrics.csv (what the training measured), telemetry.csv (nodes, GPUs and ranks, over time),
    attempts.csv (jobs, and the sets of ranks in them), time.csv (where the time went). Times are
    UTC.

    Example: echelon export last --csv figures
    """
    from echelon.monitor.export import is_empty, make_tables, write_csv  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    if not as_csv:
        raise UsageError("in which form is not said", hint=f"echelon export {run} --csv")
    found = find_run(runs_dir, run)
    if is_empty(found):
        raise NotFoundError(
            f"the run '{found.run_id}' has measured nothing yet: there is nothing to export",
            hint=f"see how it is: echelon status {found.run_id}",
        )
    folder = folder or Path(f"{found.run_id}-csv")
    tables = make_tables(found)
    _make_room(folder, [table.name for table in tables], force=force)
    for table in tables:
        path = folder / table.name
        console.print_result(f"{path}: {write_csv(table, path):,} rows")


def _make_room(folder: Path, names: list[str], *, force: bool) -> None:
    """Make the folder, and see to it that nothing is overwritten unasked."""
    if folder.exists() and not folder.is_dir():
        raise ConflictError(f"{folder} is no folder", hint="name another one")
    folder.mkdir(parents=True, exist_ok=True)
    # A link to nowhere is there, too.
    there = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if there and not force:
        raise ConflictError(
            f"{folder} has {', '.join(there)} already; nothing was written",
            hint="name another folder, or replace them: --force",
        )
