"""Prints a run or a sweep that was submitted on this machine or on a login host."""

from collections.abc import Sequence
from pathlib import Path

from echelon.cli import console
from echelon.core.jobs import LOCAL, describe_job
from echelon.core.units import counted


def announce_run(
    run: str, job_id: str, directory: Path | str, *, host: str = "", as_json: bool
) -> None:
    """Print a submitted run; `host` is the login host if that is another machine."""
    if as_json:
        _print_json({"run": run, "job_id": job_id, "directory": str(directory)}, host)
        return
    console.print_result(run)
    how = "started" if job_id.startswith(LOCAL) else "queued"
    where = f"as Slurm job {job_id} on {host}" if host else describe_job(job_id)
    console.note(f"{how} {where}; follow the output: echelon logs -f {run}")


def announce_sweep(
    sweep: str,
    tasks: int,
    jobs: Sequence[str],
    directory: Path | str,
    *,
    packed: bool,
    host: str = "",
    as_json: bool,
) -> None:
    """Print a submitted sweep, whose tasks are job arrays, or share one job if it is packed."""
    if as_json:
        own = {"job": jobs[0]} if packed else {"arrays": list(jobs)}
        facts = {"sweep": sweep, "tasks": tasks, **own}
        _print_json({**facts, "directory": str(directory)}, host)
    else:
        console.print_result(sweep)
    console.flush()
    kind = "job" if packed else "job array" if len(jobs) == 1 else "job arrays"
    where = f"{', '.join(jobs)}{f' on {host}' if host else ''}"
    show = f"show them: echelon sweep status {sweep}"
    console.note(f"queued {counted(tasks, 'task')} as {kind} {where}; {show}")


def _print_json(facts: dict[str, object], host: str) -> None:
    console.print_json({**facts, "host": host} if host else facts)
