"""`echelon report` and `echelon export`: a run's measurements, as text or as files."""

import time
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import LOOK
from echelon.cli.remote import There, execute, on_fetched_files
from echelon.cli.run_options import AsJson, Run, RunsDir, on_host
from echelon.client.manage.clusters import Places
from echelon.core.atomic_file import write_atomic
from echelon.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from echelon.monitor.export import is_empty, make_tables, write_csv
from echelon.monitor.page_report import render_page
from echelon.monitor.report import Report, make_report, render, to_record
from echelon.run.directory import RUNS, RunDir
from echelon.run.listing import find_run

app = typer.Typer(rich_markup_mode=None)


def report_there(there: There) -> int:
    """Report on a run on another host; an HTML file is written on this machine."""
    return (on_fetched_files if there.values["html"] else execute)(there)


@app.command(rich_help_panel=LOOK)
@on_host(report_there)
def report(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as an HTML file.")
    ] = None,
) -> None:
    """Show where a run's time went, and what to change.

    Example: echelon report last
    """
    directory = find_run(runs_dir, run)
    found = make_report(directory)
    _add_outcome(found, directory)
    if html is not None:
        _write_page(found, html)
    elif as_json:
        console.print_json(to_record(found))
    else:
        console.print_result(render(found))


def _add_outcome(report: Report, run: RunDir) -> None:
    """Add how the last job ended if its controller was killed before it recorded the outcome."""
    attempt = report.state.attempt
    if attempt and not attempt.outcome and (job := Places().job(run)).over:
        attempt.outcome = job.state


def _write_page(found: Report, path: Path) -> None:
    try:
        write_atomic(path, render_page(found, now_s=time.time()))
    except OSError as error:
        raise UnavailableError(
            f"cannot write {path}: {error.strerror}", hint="write to another file: --html FILE"
        ) from error
    console.note(f"wrote {path}")


@app.command(rich_help_panel=LOOK)
@on_host(on_fetched_files)
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
    """Write a run's measurements as CSV files.

    metrics.csv: metrics of the training. telemetry.csv: nodes, GPUs and ranks over time.
    attempts.csv: jobs and restarts. time.csv: where the time went. Times are UTC.

    Example: echelon export last --csv figures
    """
    if not as_csv:
        raise UsageError("no output format given", hint=f"echelon export {run} --csv")
    found = find_run(runs_dir, run)
    if is_empty(found):
        raise NotFoundError(
            f"nothing to export: the run '{found.run_id}' has no measurements yet",
            hint=f"show its state: echelon status {found.run_id}",
        )
    folder = folder or Path(f"{found.run_id}-csv")
    tables = make_tables(found)
    _make_room(folder, [table.name for table in tables], force=force)
    for table in tables:
        path = folder / table.name
        rows = write_csv(table, path)
        console.print_result(f"{path}: {rows:,} row{'' if rows == 1 else 's'}")


def _make_room(folder: Path, names: list[str], *, force: bool) -> None:
    """Create the directory, and refuse to overwrite files without --force."""
    if folder.exists() and not folder.is_dir():
        raise ConflictError(f"{folder} is not a directory", hint="choose another one")
    folder.mkdir(parents=True, exist_ok=True)
    # A dangling link counts as a file.
    existing = [name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    if existing and not force:
        raise ConflictError(
            f"{folder} already contains {', '.join(existing)}; nothing was written",
            hint="choose another directory, or replace them: --force",
        )
