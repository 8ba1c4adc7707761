"""`echelon sweep …`: many runs of one script, each with other parameters."""

import csv
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echelon.api.places import choose_cluster, choose_spec
from echelon.cli import console
from echelon.cli.help import SectionedCommand, SectionedGroup, write_sections
from echelon.cli.options import UNTIL_SCRIPT, takes_request
from echelon.cli.places import Address, On
from echelon.cli.runs import RUNS, AsJson, RunsDir
from echelon.core.units import counted
from echelon.errors import ConflictError, UsageError
from echelon.run.listing import find_sweep, list_sweeps
from echelon.run.sweep import SweepDir, escape, read_table
from echelon.run.verdict import headline
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Merged

if TYPE_CHECKING:
    from echelon.api.sweeps import Task
    from echelon.clusters.slurm.cluster import SlurmCluster

_START = "start"
"""The command that needs no name."""
_POLL_S = 2.0
"""Seconds between two questions about all tasks."""
_NAMED = 8
"""Number of runs that are named for each cause of failure."""


class SweepGroup(SectionedGroup):
    """A group in which everything but the name of a command starts a sweep."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_START, *args]
        return super().parse_args(ctx, args)


class SweepCommand(SectionedCommand):
    """The command that needs no name; its help lists the others."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        del info_name  # users do not write it
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        others: Any = typer.main.get_command(app)
        rows = [
            (f"{name} SWEEP", command.get_short_help_str(100))
            for name, command in others.commands.items()
            if name != _START
        ]
        write_sections(formatter, {"Commands": rows})
        super().format_options(ctx, formatter)


app = typer.Typer(
    name="sweep",
    help="Run a script once per combination of parameters.\n\n"
    "Example: echelon sweep --grid lr=0.1,0.01 --grid seed=1..5 train.py --lr {lr} --seed {seed}",
    cls=SweepGroup,
    rich_markup_mode=None,
)


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    runs = Path(context.params.get("runs_dir") or os.environ.get("ECHELON_RUNS_DIR") or "runs")
    names = ["last", *(sweep.sweep_id for sweep in reversed(list_sweeps(runs)))]
    return [name for name in names if name.startswith(incomplete)]


Sweep = Annotated[
    str,
    typer.Argument(
        help="Sweep id or a unique prefix, or last.", autocompletion=complete_sweep, metavar="SWEEP"
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait for all tasks; exit with 1 if one failed.")
]


@app.command(_START, cls=SweepCommand, context_settings=UNTIL_SCRIPT, hidden=True)
@takes_request
def start(
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
    runs_dir: RunsDir = RUNS,
    on: On = "slurm",
    address: Address = "",
    wait: Wait = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the request and list the tasks; start none.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a script once per combination of parameters, and print the sweep id.

    {NAME} in an argument of the script stands for the value, {index} for the number of the task.
    Each task is a run of its own; on Slurm they are a job array.

    Example: echelon sweep --grid lr=0.1,0.01 --grid seed=1..5 train.py --lr {lr} --seed {seed}
    """
    from echelon.api.parameters import read_parameters  # noqa: PLC0415
    from echelon.api.submission import check_request, choose_snapshot  # noqa: PLC0415
    from echelon.api.sweeps import check_sweep, create_sweep  # noqa: PLC0415

    if request.host and on == "slurm":
        raise UsageError(
            f"a sweep cannot be sent to {request.host}",
            hint=f"start it there: ssh {request.host}, then echelon sweep",
        )
    rows = read_parameters(grid or [], file)
    cluster = choose_cluster(on, runs_dir, address=address, tied=on == "local")
    spec = choose_snapshot(choose_spec(request, on, os.environ), default=True)
    check_sweep(spec, list(rows[0]))
    check_request(spec, cluster, "sweep")
    if dry_run:
        _print_rows([{"index": str(number), **row} for number, row in enumerate(rows)], as_json)
        return
    sweep = create_sweep(spec, rows, runs_dir, max_running=max_running)
    raise typer.Exit(_submit(sweep, cluster, list(range(len(rows))), wait=wait, as_json=as_json))


def submit_array(
    spec: JobSpec,
    indices: list[int],
    max_running: int,
    cluster: Any,
    runs_dir: Path,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit the script of a job array as a sweep whose tasks differ in their index alone."""
    from echelon.api.sweeps import create_sweep  # noqa: PLC0415

    literal = replace(spec, args=tuple(map(escape, spec.args)))
    rows = {index: dict[str, str]() for index in indices}
    sweep = create_sweep(literal, rows, runs_dir, max_running=max_running)
    return _submit(sweep, cluster, indices, wait=wait, as_json=as_json)


def _print_rows(rows: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        console.print_json(rows)
    else:
        console.print_table(list(rows[0]), [list(row.values()) for row in rows])


def _submit(
    sweep: SweepDir, cluster: Any, indices: list[int], *, wait: bool, as_json: bool = False
) -> int:
    """Start tasks of a sweep; return the command's exit code."""
    from echelon.api.sweeps import carry_out, submit_sweep  # noqa: PLC0415
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    tasks = counted(len(indices), "task")
    if not isinstance(cluster, SlurmCluster):
        console.print_result(sweep.sweep_id)
        console.flush()
        here = isinstance(cluster, LocalCluster)
        at_once = read_table(sweep).max_running or (1 if here else len(indices))
        failed = carry_out(sweep, cluster, os.environ, indices, at_once=at_once)
        console.note(f"{len(indices) - len(failed)} of {tasks} completed")
        return 1 if failed else 0
    arrays = submit_sweep(sweep, cluster, os.environ, indices=indices)
    if as_json:
        console.print_json(
            {"sweep": sweep.sweep_id, "tasks": len(indices), "arrays": arrays}
            | {"directory": str(sweep.path)}
        )
    else:
        console.print_result(sweep.sweep_id)
    console.flush()
    queued = f"queued {tasks} as {'job array' if len(arrays) == 1 else 'job arrays'}"
    console.note(f"{queued} {', '.join(arrays)}; show them: echelon sweep status {sweep.sweep_id}")
    return _wait(sweep, cluster) if wait else 0


def _wait(sweep: SweepDir, cluster: "SlurmCluster") -> int:
    from echelon.api.sweeps import read_tasks  # noqa: PLC0415

    while True:
        tasks = read_tasks(sweep, cluster)
        if all(task.job.over and task.state != "UNKNOWN" for task in tasks):
            console.note(f"{sweep.sweep_id}: {_count(tasks)}")
            return 0 if all(task.state == "COMPLETED" for task in tasks) else 1
        time.sleep(_POLL_S)


def _read(runs_dir: Path, name: str) -> tuple[SweepDir, "list[Task]"]:
    from echelon.api.sweeps import read_tasks  # noqa: PLC0415

    sweep = find_sweep(runs_dir, name)
    return sweep, read_tasks(sweep, _slurm(runs_dir))


def _slurm(runs_dir: Path) -> Any:
    return choose_cluster("slurm", runs_dir)


def _count(tasks: "list[Task]") -> str:
    counts = Counter(task.state for task in tasks)
    return ", ".join(f"{number} {state}" for state, number in counts.most_common())


@app.command()
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
        console.print_json({**facts, "running": running, "failed": failed, "arrays": arrays})
        return
    rows = [["sweep", found.sweep_id], ["tasks", str(len(tasks))]]
    rows += [[state, str(number)] for state, number in counts.most_common()]
    if running:
        rows.append(["running", _name(running)])
    console.print_table(["", ""], rows)
    for cause, ones in sorted(causes.items(), key=lambda entry: -len(entry[1])):
        verdict = ones[0].verdict
        assert verdict is not None
        ids = _name([task.run_id for task in ones])
        console.print_result(f"\n{cause}: {ids}\n  {headline(verdict.failure)}")
        if verdict.advice:
            console.print_result(f"  hint: {verdict.advice}")
    for reason in sorted({task.job.reason for task in tasks if task.state == "UNKNOWN"}):
        console.note(f"some states are unknown: {reason}")
    if causes:
        console.note(f"run them again: echelon sweep resume {found.sweep_id}")


def _name(runs: list[str]) -> str:
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return ", ".join(runs[:_NAMED]) + more


@app.command()
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
def stop(sweep: Sweep, *, runs_dir: RunsDir = RUNS) -> None:
    """Cancel waiting tasks, and ask running ones to stop.

    Example: echelon sweep stop last
    """
    from echelon.api.sweeps import stop_sweep  # noqa: PLC0415

    found = find_sweep(runs_dir, sweep)
    count = stop_sweep(found, _slurm(runs_dir))
    if count:
        console.note(
            f"stopping {counted(count, 'task')}; continue later with: "
            f"echelon sweep resume {found.sweep_id}"
        )
    else:
        console.note(f"{found.sweep_id} has no waiting or running tasks")


@app.command()
def resume(
    sweep: Sweep = "last",
    *,
    runs_dir: RunsDir = RUNS,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Run what is missing or failed; runs continue from their checkpoints.

    Example: echelon sweep resume last
    """
    from echelon.api.sweeps import check_home, place_of, read_tasks  # noqa: PLC0415

    found = find_sweep(runs_dir, sweep)
    check_home(found)
    cluster = place_of(found)
    tasks = read_tasks(found, _slurm(runs_dir), strict=True)
    left = [task.index for task in tasks if task.is_left]
    if not left:
        going = sum(not task.job.over for task in tasks)
        what = f"{counted(going, 'task')} still to end" if going else "all tasks are complete"
        raise ConflictError(
            f"the sweep '{found.sweep_id}' has nothing to resume: {what}",
            hint=f"show its tasks: echelon sweep table {found.sweep_id}",
        )
    raise typer.Exit(_submit(found, cluster, left, wait=wait, as_json=as_json))
