"""`echelon sweep …`: many runs of one script, each with other parameters."""

import csv
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from echelon.cli import console
from echelon.cli.completion import complete_sweep
from echelon.cli.help import SectionedCommand, SectionedGroup
from echelon.cli.options import UNTIL_SCRIPT, takes_request
from echelon.cli.remote import resume_sweep_there, submit_there
from echelon.cli.run_options import Address, AsJson, On, RunsDir, goes_to_host, on_host
from echelon.cli.tasks import open_slurm, start_tasks, submit_tasks, wait_for_tasks
from echelon.client.submit.target import Target
from echelon.core.units import counted, list_names
from echelon.errors import ConflictError, UsageError
from echelon.run.directory import RUNS
from echelon.run.listing import find_sweep
from echelon.run.sweep import SweepDir, read_table
from echelon.run.verdict import headline
from echelon.spec.merging import Merged

if TYPE_CHECKING:
    from echelon.client.manage.sweeps import Task

_CALLED = "echelon.sweep"
"""The key under which a context keeps the words of a command of the group."""


class SweepGroup(SectionedGroup):
    """A group that is also a command: other words than its commands' names start a sweep."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.meta[_CALLED] = args
            return []
        return TyperCommand.parse_args(self, ctx, args)

    def invoke(self, ctx: Any) -> Any:
        if _CALLED not in ctx.meta:
            return TyperCommand.invoke(self, ctx)
        name, *words = ctx.meta[_CALLED]
        command: Any = self.commands[name]
        with command.make_context(name, words, parent=ctx) as own:
            return command.invoke(own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return TyperCommand.collect_usage_pieces(self, ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        SectionedCommand.format_options(self, ctx, formatter)  # type: ignore[arg-type]


app = typer.Typer(name="sweep", cls=SweepGroup, rich_markup_mode=None)


Sweep = Annotated[
    str,
    typer.Argument(
        help="Sweep id or a unique prefix, or last.", autocompletion=complete_sweep, metavar="SWEEP"
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for all tasks; exit with 1 if one failed.")
]


@app.callback(invoke_without_command=True, context_settings=UNTIL_SCRIPT)
@takes_request
def sweep(
    *,
    request: Merged,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=VALUES",
            help="Parameter and its values, such as lr=0.1,0.01 or seed=1..5; all combinations "
            "of several.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="CSV",
            help="File with a line of names and one line of values per task.",
            show_default=False,
        ),
    ] = None,
    max_running: Annotated[
        int,
        typer.Option(
            "--max-running",
            metavar="N",
            min=0,
            show_default=False,
            help="Tasks that run at a time [default: no limit; 1 with --on local].",
        ),
    ] = 0,
    pack: Annotated[
        int,
        typer.Option(
            "--pack",
            metavar="NODES",
            min=0,
            show_default=False,
            help="Run all tasks side by side on that many whole nodes, in one job.",
        ),
    ] = 0,
    per_slot: Annotated[
        int,
        typer.Option(
            "--per-slot",
            metavar="N",
            min=1,
            show_default=False,
            help="With --pack: tasks that share the same GPUs and CPUs [default: 1].",
        ),
    ] = 1,
    runs_dir: RunsDir = RUNS,
    on: On = "slurm",
    address: Address = "",
    wait: Wait = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the request and list the tasks; start none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a script once per combination of parameters.

    {NAME} in an argument of the script stands for the value, {index} for the number of the task.
    Each task is a run of its own. On Slurm, the tasks are a job array, or with --pack one job.

    Example: echelon sweep --grid lr=0.1,0.01 train.py --lr {lr}
    """
    from echelon.client.submit import pipeline  # noqa: PLC0415
    from echelon.client.submit.parameters import make_table, read_parameters  # noqa: PLC0415

    if per_slot > 1 and not pack:
        raise UsageError(
            "--per-slot has no effect without --pack",
            hint="add --pack NODES to run the tasks side by side in one job",
        )
    rows = read_parameters(grid or [], file)
    wanted = pipeline.Request(
        merged=request,
        target=Target(on=on, runs=runs_dir, address=address, tied=on == "local"),
        command="sweep",
        table=make_table(rows, max_running, pack=pack, per_slot=per_slot),
    )
    on_host = goes_to_host(request, on, runs_dir)
    if dry_run:
        from echelon.client.submit.host_submission import check_for_host  # noqa: PLC0415

        (check_for_host if on_host else pipeline.check)(wanted)
        _print_tasks([{"index": str(number), **row} for number, row in enumerate(rows)], as_json)
        if on_host:
            console.note(f"not checked on {request.host}, because nothing was sent there")
        return
    if on_host:
        raise typer.Exit(submit_there(wanted, wait=wait, as_json=as_json))
    prepared = pipeline.prepare(pipeline.check(wanted))
    raise typer.Exit(submit_tasks(prepared, wait=wait, as_json=as_json))


def _print_tasks(tasks: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        console.print_json(tasks)
    else:
        console.print_table(list(tasks[0]), [list(task.values()) for task in tasks])


def _read(runs_dir: Path, name: str) -> tuple[SweepDir, "list[Task]"]:
    from echelon.client.manage.sweeps import read_tasks  # noqa: PLC0415

    sweep = find_sweep(runs_dir, name)
    return sweep, read_tasks(sweep, open_slurm())


@app.command()
@on_host()
def status(sweep: Sweep = "last", *, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """Count tasks by state, and group failures by cause.

    Example: echelon sweep status last
    """
    found, tasks = _read(runs_dir, sweep)
    running = [task.run_id for task in tasks if task.state == "RUNNING"]
    causes: dict[str, list[Task]] = {}
    for task in tasks:
        if task.verdict:
            causes.setdefault(task.verdict.failure.cause, []).append(task)
    counts = Counter(task.state for task in tasks)
    if as_json:
        failed = {cause: [task.run_id for task in ones] for cause, ones in causes.items()}
        facts = {"sweep": found.sweep_id, "tasks": len(tasks), "states": dict(counts)}
        arrays = [array.job_id for array in found.arrays()]
        jobs = {
            task.run_id: {"state": task.state, "job": task.job.id, "reason": task.job.reason}
            for task in tasks
        }
        going = sum(not task.job.over for task in tasks)
        facts |= {"going": going, "running": running, "failed": failed, "arrays": arrays}
        console.print_json({**facts, "runs": jobs})
        return
    rows = [["sweep", found.sweep_id], ["tasks", str(len(tasks))]]
    rows += [[state, str(number)] for state, number in counts.most_common()]
    if running:
        rows.append(["running", list_names(running)])
    console.print_table(["", ""], rows)
    for cause, ones in sorted(causes.items(), key=lambda entry: -len(entry[1])):
        verdict = ones[0].verdict
        assert verdict is not None
        ids = list_names([task.run_id for task in ones])
        console.print_result(f"\n{cause}: {ids}\n  {headline(verdict.failure)}")
        if verdict.advice:
            console.print_result(f"  hint: {verdict.advice}")
    for reason in sorted({task.job.reason for task in tasks if task.state == "UNKNOWN"}):
        console.note(f"some states are unknown: {reason}")
    if causes:
        console.note(f"run them again: echelon sweep resume {found.sweep_id}")


@app.command()
@on_host()
def table(
    sweep: Sweep = "last",
    *,
    runs_dir: RunsDir = RUNS,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Metric to show [default: the first one].", show_default=False
        ),
    ] = "",
    best: Annotated[
        str,
        typer.Option(
            metavar="min|max", help="Show the best value, not the last one.", show_default=False
        ),
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN", help="Sort by a column; -COLUMN for descending.", show_default=False
        ),
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Output CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show parameters, state and a metric of each task.

    Example: echelon sweep table last --metric loss --best min --sort loss
    """
    from echelon.monitor.sweep_table import (  # noqa: PLC0415
        find_metric,
        read_best,
        read_last,
        sort_rows,
    )

    if best not in ("", "min", "max"):
        raise UsageError(f"invalid value for --best: '{best}'", hint="choose min or max")
    found, tasks = _read(runs_dir, sweep)
    metric = metric or find_metric(task.run for task in tasks)
    headings = ["run", *read_table(found).names, "state", *([metric] if metric else []), "cause"]
    rows = []
    for task in tasks:
        value = None
        if metric:
            largest = best == "max"
            value = (
                read_best(task.run, metric, largest=largest)
                if best
                else read_last(task.run, metric)
            )
        shown = ["" if value is None else f"{value:.6g}"] if metric else []
        cause = task.verdict.failure.cause if task.verdict else ""
        rows.append([task.run_id, *task.parameters.values(), task.state, *shown, cause])
    if sort:
        column = sort.removeprefix("-")
        if column not in headings:
            raise UsageError(
                f"unknown column for --sort: '{column}'", hint=f"choose {', '.join(headings)}"
            )
        rows = [list(row) for row in sort_rows(rows, headings.index(column), down=sort != column)]
    if as_json:
        console.print_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif as_csv:
        csv.writer(sys.stdout).writerows([headings, *rows])
    else:
        console.print_table(headings, rows)


@app.command()
@on_host()
def stop(sweep: Sweep, *, runs_dir: RunsDir = RUNS) -> None:
    """Cancel waiting tasks, and ask running ones to stop.

    Example: echelon sweep stop last
    """
    from echelon.client.manage.sweeps import stop_sweep  # noqa: PLC0415

    found = find_sweep(runs_dir, sweep)
    count = stop_sweep(found, open_slurm())
    if count:
        console.note(
            f"stopping {counted(count, 'task')}; continue later with: "
            f"echelon sweep resume {found.sweep_id}"
        )
    else:
        console.note(f"{found.sweep_id} has no waiting or running tasks")


@app.command()
@on_host(resume_sweep_there)
def resume(
    sweep: Sweep = "last",
    *,
    runs_dir: RunsDir = RUNS,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Run what is missing or failed.

    Runs continue from their checkpoints.

    Example: echelon sweep resume last
    """
    from echelon.client.manage.run_jobs import sweep_jobs  # noqa: PLC0415
    from echelon.client.manage.sweep_runner import has_runner  # noqa: PLC0415
    from echelon.client.manage.sweeps import check_home, place_of, read_tasks  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    found = find_sweep(runs_dir, sweep)
    check_home(found)
    if has_runner(found):
        raise ConflictError(
            f"another process still starts tasks of the sweep '{found.sweep_id}'",
            hint=f"wait for it, or stop it: echelon sweep stop {found.sweep_id}",
        )
    cluster = place_of(found)
    with found.locked():
        tasks = read_tasks(found, open_slurm(), strict=True)
        left = [task.index for task in tasks if task.is_left]
        if not left:
            going = sum(not task.job.over for task in tasks)
            what = f"{counted(going, 'task')} still to end" if going else "all tasks are complete"
            raise ConflictError(
                f"the sweep '{found.sweep_id}' has nothing to resume: {what}",
                hint=f"show its tasks: echelon sweep table {found.sweep_id}",
            )
        code = start_tasks(found, cluster, left, as_json=as_json)
    if wait and isinstance(cluster, SlurmCluster):
        code = wait_for_tasks(sweep_jobs(found, cluster), found.sweep_id)
    raise typer.Exit(code)
