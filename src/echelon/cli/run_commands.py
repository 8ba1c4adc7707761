"""What the commands do that users repeat most: show runs, stop them, and end them.

They are apart from their options (`cli/runs.py`), whose library takes longer to load than they do.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.api.places import Places, cluster_of
from echelon.cli import console
from echelon.cli.defaults import RUNS
from echelon.core.jobs import Job, short_id
from echelon.errors import NotFoundError
from echelon.run.attempts import attempts, is_of_use
from echelon.run.directory import RunDir
from echelon.run.listing import find_run, list_runs, list_sweeps

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster

FORGOTTEN = ("UNKNOWN", "UNSUBMITTED")
"""States of jobs that nobody knows."""


def ps(*, runs_dir: Path, as_json: bool) -> int:
    """List runs."""
    from echelon.cli.remote import list_elsewhere  # noqa: PLC0415

    rows, places = [], Places()
    silent: dict[str, str] = {}
    for run in list_runs(runs_dir):
        if run.task.exists():
            continue  # its sweep has one row for all tasks
        job, known = places.job(run), attempts(run)
        if job.state == "UNKNOWN":
            silent.setdefault(job.reason, run.run_id)
        job_id = job.id if as_json else short_id(job.id)
        rows.append(
            [run.run_id, job.state, job_id, job.nodes, known[-1].submitted if known else ""]
        )
    rows += _list_sweeps(runs_dir)
    headings = ["run", "state", "job", "nodes", "submitted"]
    elsewhere = list_elsewhere() if runs_dir == RUNS else []
    if elsewhere:
        names, headings = headings, [*headings, "host"]
        rows = [[*row, ""] for row in rows]
        for site, found in elsewhere:
            rows += [[*(str(one[name]) for name in names), site.host] for one in found]
    if as_json:
        console.print_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif rows:
        console.print_table(headings, rows)
    else:
        console.note(f"no runs in {runs_dir.absolute()}; start one: echelon submit SCRIPT.py")
    for reason, run_id in silent.items():
        console.note(f"{run_id}: the state is unknown: {reason}")
    return 0


def _list_sweeps(runs_dir: Path) -> list[list[str]]:
    """Return one row per sweep: Slurm is asked about its tasks together."""
    found = list_sweeps(runs_dir)
    if not found:
        return []
    from echelon.api.sweeps import read_tasks  # noqa: PLC0415
    from echelon.cli.tasks import count_states  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    slurm = SlurmCluster(LocalShell(), os.environ, tell=console.note)
    return [
        [
            *(sweep.sweep_id, count_states(read_tasks(sweep, slurm))),
            *(",".join(array.job_id for array in sweep.arrays()), "", ""),
        ]
        for sweep in found
    ]


def status(*, run: str, runs_dir: Path, as_json: bool) -> int:
    """Show a run's state."""
    from echelon.monitor.accounting import account  # noqa: PLC0415
    from echelon.monitor.reading import MOST_NODES, RunReader  # noqa: PLC0415
    from echelon.run.request import known_code  # noqa: PLC0415

    found = find_run(runs_dir, run)
    job = Places().job(found)
    code = known_code(found)
    seen = RunReader(found, first=1, most_nodes=MOST_NODES, metrics=False).read()
    facts = {
        "run": found.run_id,
        "state": job.state,
        "reason": job.reason,
        "job": job.id if as_json else short_id(job.id),
        "attempts": sum(is_of_use(found, attempt) for attempt in attempts(found)),
        "nodes": job.nodes,
        "step": seen.step if seen.step >= 0 else None,
        "exit_code": None if not job.over or job.state in FORGOTTEN else job.exit_code,
        "code": code.describe() if code else "",
        "directory": str(found.path.absolute()),
    }
    accounts = account(seen)
    if as_json:
        effective = None if accounts.effective is None else round(accounts.effective, 4)
        from echelon.core.codec import encode  # noqa: PLC0415

        facts["code"] = encode(code) if code else None
        console.print_json({**facts, "effective": effective, "time": accounts.seconds})
    else:
        facts["effective"] = accounts.render()
        rows = [[name, str(fact)] for name, fact in facts.items() if fact not in ("", None)]
        console.print_table(["", ""], rows)
    return 0


def logs(
    *,
    run: str,
    runs_dir: Path,
    follow: bool = False,
    rank: int | None = None,
    tail: int | None = None,
    raw: bool = False,
) -> int:
    """Print a run's output."""
    from echelon.api.waiting import exit_code  # noqa: PLC0415
    from echelon.cli.following import follow_run, print_logs  # noqa: PLC0415

    found = find_run(runs_dir, run)
    if follow:
        job = follow_run(found, cluster_of(found), show=True, rank=rank, raw=raw, tail=tail)
        return exit_code(job)
    if not print_logs(found, rank=rank, raw=raw, tail=tail) and tail != 0:
        who = "" if rank is None else f"rank {rank} of "
        raise NotFoundError(
            f"{who}the run '{found.run_id}' has not printed anything yet",
            hint=f"show its state: echelon status {found.run_id}",
        )
    return 0


def stop(*, run: str, runs_dir: Path, address: str = "") -> int:
    """Ask a run to stop."""
    from echelon.api.waiting import stop_all  # noqa: PLC0415

    if _cancel_waiting(runs_dir, run):
        return 0
    found, cluster = find_with_job(runs_dir, run, address)
    if _current(found, cluster):
        stop_all(found, cluster)
        console.note(f"stop requested; continue later with: echelon resume {found.run_id}")
    return 0


def cancel(*, run: str, runs_dir: Path, address: str = "") -> int:
    """End a run."""
    from echelon.api.waiting import cancel_all  # noqa: PLC0415

    if _cancel_waiting(runs_dir, run):
        return 0
    found, cluster = find_with_job(runs_dir, run, address)
    if _current(found, cluster):
        cancel_all(found, cluster)
        console.note(f"cancelled {found.run_id}")
    return 0


def _cancel_waiting(runs_dir: Path, name: str) -> bool:
    """Cancel a task of a sweep that has not started yet; return whether the name is one."""
    from echelon.api.sweeps import (  # noqa: PLC0415
        cancel_waiting,
        check_home,
        find_waiting,
        read_tasks,
    )
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    found = find_waiting(runs_dir, name)
    if found is None:
        return False
    sweep, index = found
    check_home(sweep)
    slurm = SlurmCluster(LocalShell(), os.environ, tell=console.note)
    tasks = read_tasks(sweep, slurm, strict=True)
    job = next(task.job for task in tasks if task.index == index)
    if job.over and job.id:
        console.note(f"{name} has already ended: {job.state}")
    else:
        cancel_waiting(sweep, index, job)
        console.note(f"cancelled {name}, which had not started")
    return True


def find_with_job(runs_dir: Path, name: str, address: str) -> tuple[RunDir, "Cluster"]:
    """Return a run that has a job, and its cluster."""
    from echelon.api.relocation import check_original  # noqa: PLC0415

    found = find_run(runs_dir, name)
    check_original(found)
    if not attempts(found):
        raise NotFoundError(
            f"the run '{found.run_id}' has no job", hint="check the queue: squeue --me"
        )
    return found, cluster_of(found, address=address)


def _current(run: RunDir, cluster: "Cluster") -> Job | None:
    """Return the job to end; None, with a message, if the run has already ended."""
    from echelon.api.outcomes import current_job  # noqa: PLC0415

    job = current_job(run, cluster)
    if job.over and job.state not in FORGOTTEN:
        console.note(f"{run.run_id} has already ended: {job.state}")
        return None
    return job


def why(*, run: str, runs_dir: Path, as_json: bool) -> int:
    """Explain why a run failed."""
    from echelon.api.outcomes import find_verdict  # noqa: PLC0415
    from echelon.run.verdict import render  # noqa: PLC0415

    found = find_run(runs_dir, run)
    verdict = find_verdict(found, Places().job(found))
    if as_json:
        console.print_json(asdict(verdict) if verdict else None)
    elif verdict:
        console.print_result(f"{found.run_id}\n{render(verdict, whole=True, run=found.path)}")
    else:
        console.note(f"{found.run_id} has not failed")
    return 0
