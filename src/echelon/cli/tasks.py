"""Start the tasks of a sweep, and wait for their end."""

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from echelon.cli import console
from echelon.core.units import counted
from echelon.errors import UnavailableError
from echelon.run.sweep import SweepDir, read_table

if TYPE_CHECKING:
    from echelon.client.manage.sweeps import Task
    from echelon.client.submit.pipeline import Prepared
    from echelon.clusters.slurm.cluster import SlurmCluster

_POLL_S = 2.0
"""Seconds between two questions about all tasks."""


def submit_tasks(prepared: "Prepared", *, wait: bool, as_json: bool = False) -> int:
    """Start all tasks of a new sweep; return the command's exit code."""
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    assert prepared.table is not None, "the caller knows that it is a sweep"
    sweep, cluster = prepared.sweep, prepared.cluster
    with sweep.locked():
        code = start_tasks(sweep, cluster, list(prepared.table.tasks), as_json=as_json)
    return wait_for_tasks(sweep, cluster) if wait and isinstance(cluster, SlurmCluster) else code


def start_tasks(sweep: SweepDir, cluster: Any, indices: list[int], *, as_json: bool) -> int:
    """Submit tasks to Slurm, or run them elsewhere to their end; return the exit code."""
    from echelon.client.manage.sweep_runner import carry_out  # noqa: PLC0415
    from echelon.client.submit.arrays import submit_sweep  # noqa: PLC0415
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

    tasks = counted(len(indices), "task")
    for mark in (sweep.stopped, *map(sweep.cancelled, indices)):
        mark.unlink(missing_ok=True)
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
    return 0


def wait_for_tasks(sweep: SweepDir, cluster: "SlurmCluster") -> int:
    """Wait for all tasks of a sweep on Slurm; return 1 if one is not complete."""
    from echelon.client.manage.sweeps import read_tasks  # noqa: PLC0415

    while True:
        try:
            tasks = read_tasks(sweep, cluster, strict=True)
        except UnavailableError as error:  # the tasks may be fine
            console.note(f"waiting for the cluster: {error.message}")
            time.sleep(_POLL_S)
            continue
        if all(task.job.over for task in tasks):  # UNKNOWN: Slurm has forgotten it
            console.note(f"{sweep.sweep_id}: {count_states(tasks)}")
            return 0 if all(task.state == "COMPLETED" for task in tasks) else 1
        time.sleep(_POLL_S)


def count_states(tasks: "list[Task]") -> str:
    """Return how many tasks are in each state, such as `3 COMPLETED, 1 RUNNING`."""
    counts = Counter(task.state for task in tasks)
    return ", ".join(f"{number} {state}" for state, number in counts.most_common())
