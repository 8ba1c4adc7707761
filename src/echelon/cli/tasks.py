"""Start the tasks of a sweep, and wait for their end."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from echelon.cli import console
from echelon.cli.announcement import announce_sweep
from echelon.core.units import counted
from echelon.core.waiting import wait_for
from echelon.run.sweep import SweepDir, read_table

if TYPE_CHECKING:
    from echelon.client.manage.run_jobs import RunJobs
    from echelon.client.submit.pipeline import Prepared
    from echelon.clusters.base import Cluster
    from echelon.clusters.slurm.cluster import SlurmCluster
    from echelon.core.jobs import Job

_POLL_S = 2.0
"""Seconds between two queries about all tasks."""


def submit_tasks(prepared: "Prepared", *, wait: bool, as_json: bool) -> int:
    """Start all tasks of a new sweep; return the command's exit code."""
    from echelon.client.manage.run_jobs import sweep_jobs  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    assert prepared.table is not None, "only a sweep has tasks"
    sweep, cluster = prepared.sweep, prepared.cluster
    with sweep.locked():
        code = start_tasks(sweep, cluster, list(prepared.table.tasks), as_json=as_json)
    if wait and isinstance(cluster, SlurmCluster):
        return wait_for_tasks(sweep_jobs(sweep, cluster), sweep.sweep_id)
    return code


def start_tasks(sweep: SweepDir, cluster: "Cluster", indices: list[int], *, as_json: bool) -> int:
    """Submit tasks to Slurm, or run them elsewhere to their end; return the exit code."""
    from echelon.client.manage.sweep_runner import run  # noqa: PLC0415
    from echelon.client.submit.arrays import submit_sweep  # noqa: PLC0415
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    if read_table(sweep).pack:
        return _start_packed(sweep, cluster, indices, as_json=as_json)
    for mark in (sweep.stopped, *map(sweep.cancelled, indices)):
        mark.unlink(missing_ok=True)
    if not isinstance(cluster, SlurmCluster):
        console.print_result(sweep.sweep_id)
        console.flush()
        here = isinstance(cluster, LocalCluster)
        at_once = read_table(sweep).max_running or (1 if here else len(indices))
        failed = run(sweep, cluster, os.environ, indices, at_once=at_once)
        done = len(indices) - len(failed)
        console.note(f"{done} of {counted(len(indices), 'task')} completed")
        return 1 if failed else 0
    arrays = submit_sweep(sweep, cluster, os.environ, indices=indices)
    announce_sweep(sweep.sweep_id, len(indices), arrays, sweep.path, packed=False, as_json=as_json)
    return 0


def _start_packed(sweep: SweepDir, cluster: "Cluster", indices: list[int], *, as_json: bool) -> int:
    """Submit one job for tasks, or run it here to its end; return the exit code."""
    from echelon.client.manage.waiting import wait_for_own_run  # noqa: PLC0415
    from echelon.client.submit.arrays import submit_packed  # noqa: PLC0415
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415

    attempt = submit_packed(sweep, cluster, os.environ, indices)
    if not isinstance(cluster, LocalCluster):
        jobs, count = [attempt.job_id], len(indices)
        announce_sweep(sweep.sweep_id, count, jobs, sweep.path, packed=True, as_json=as_json)
        return 0
    console.print_result(sweep.sweep_id)
    console.flush()
    job = wait_for_own_run(sweep.files, cluster, None)
    return 0 if job.state == "COMPLETED" else job.exit_code or 1


def open_slurm() -> "SlurmCluster":
    """Return this machine's Slurm, which tasks of sweeps are queried from."""
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    return SlurmCluster(LocalShell(), os.environ, tell=console.note)


def wait_for_tasks(jobs: "RunJobs", sweep_id: str) -> int:
    """Wait for all tasks of a sweep, print their states, and return 1 if one is not complete."""

    def look() -> "list[Job | None] | None":
        found = jobs.ended()
        return list(found.values()) if found and all(found.values()) else None

    states = [job.state for job in wait_for(look, every_s=_POLL_S) if job]
    console.note(f"{sweep_id}: {count_states(states)}")
    return 0 if set(states) == {"COMPLETED"} else 1


def count_states(states: Iterable[str]) -> str:
    """Return how many tasks are in each state, such as `3 COMPLETED, 1 RUNNING`."""
    return ", ".join(f"{number} {state}" for state, number in Counter(states).most_common())
