"""`echelon clean`: show the disk space of runs, and remove old ones."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.completion import complete_run
from echelon.cli.help import LOOK
from echelon.cli.remote import in_terminal
from echelon.cli.run_options import AsJson, RunsDir, on_host
from echelon.client.manage.cleaning import Holding, choose, find_use, measure, remove, show_age
from echelon.client.manage.clusters import Places
from echelon.core.units import counted, format_bytes, parse_duration
from echelon.errors import ConflictError, UsageError
from echelon.run.directory import RUNS
from echelon.run.listing import find_run, list_runs

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=LOOK)
@on_host(in_terminal)
def clean(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Runs to remove, whatever their age.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    runs_dir: RunsDir = RUNS,
    keep: Annotated[int, typer.Option(metavar="N", min=0, help="Keep the newest N runs.")] = 20,
    older: Annotated[
        str, typer.Option(metavar="AGE", help="Remove only runs that ended this long ago.")
    ] = "30d",
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="Also remove runs that could resume from a checkpoint."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what runs hold; remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs hold on disk, and remove old ones.

    Removes runs that are older than --older and not among the newest --keep. Active runs are never
    removed, and unfinished ones with a checkpoint only with --unfinished.

    Example: echelon clean --keep 5 --older 7d --dry-run
    """
    older_s = parse_duration(older)
    if older_s is None:
        raise UsageError(f"--older {older} is not an age", hint="write 30d, 12h or 0s")
    places, now_s = Places(), time.time()
    chosen = [find_run(runs_dir, name) for name in dict.fromkeys(runs or [])]
    found = [measure(run, places.job(run)) for run in chosen or list_runs(runs_dir)]
    if chosen:
        _check_named(found, unfinished=unfinished)
    else:
        found = choose(found, keep=keep, older_s=older_s, now_s=now_s, unfinished=unfinished)
    going = [one for one in found if not one.kept]
    _print(found, now_s, as_json=as_json)
    about = f"{counted(len(going), 'run')} with {format_bytes(sum(one.size for one in going))}"
    if not going:
        console.note("nothing to remove")
    elif dry_run:
        console.note(f"would remove {about}")
    elif yes or _is_confirmed(about):
        remove(going)
        console.note(f"removed {about}")


def _check_named(found: Sequence[Holding], *, unfinished: bool) -> None:
    for one in found:
        if why := find_use(one, unfinished=unfinished):
            raise ConflictError(
                f"the run '{one.run.run_id}' cannot be removed: {why}",
                hint="add --unfinished to remove it with its checkpoints"
                if one.over
                else f"end it first: echelon cancel {one.run.run_id}",
            )


def _is_confirmed(about: str) -> bool:
    if not console.can_ask():
        raise UsageError(f"{about} would be removed, but nobody can confirm it", hint="add --yes")
    return console.ask(f"Remove {about}?", ("yes", "no"), "no") == "yes"


def _print(found: Sequence[Holding], now_s: float, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "run": one.run.run_id,
            "state": one.state,
            "age_s": round(now_s - one.written_s),
            "code": one.code,
            "checkpoints": one.checkpoints,
            "logs": one.logs,
            "kept": one.kept,
        }
        for one in found
    ]
    if as_json:
        console.print_json(rows)
        return
    for row in rows:
        row["age_s"] = show_age(row["age_s"])
        row |= {name: format_bytes(row[name]) for name in ("code", "checkpoints", "logs")}
        row["kept"] = f"kept: {row['kept']}" if row["kept"] else "to be removed"
    headings = ["run", "state", "age", "code", "checkpoints", "logs", ""]
    if rows:
        console.print_table(headings, [[str(cell) for cell in row.values()] for row in rows])
