"""Submits the tasks of a sweep: as job arrays on Slurm, or packed into one job."""

import json
import os
from collections.abc import Mapping, Sequence

from echelon.client.submit.trust import read_script
from echelon.clusters.base import Cluster, queue_attempt
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.atomic_file import remove_tree, write_atomic
from echelon.core.slurm import Slurm, mark_tasks
from echelon.errors import UnavailableError, UsageError
from echelon.run.attempts import Attempt
from echelon.run.request import read_spec
from echelon.run.sweep import Array, SweepDir, read_table


def submit_sweep(
    sweep: SweepDir,
    cluster: SlurmCluster,
    environ: Mapping[str, str],
    *,
    indices: Sequence[int] = (),
    again: bool = False,
) -> list[str]:
    """Submit tasks of a sweep as job arrays, and return the ids of the arrays.

    Args:
        sweep: the sweep.
        cluster: where to submit it.
        environ: environment variables of the jobs.
        indices: the tasks; all of them by default.
        again: submit only the arrays that an interrupted call has not submitted.

    Raises:
        UsageError: the cluster refuses the request.
        UnavailableError: the cluster refuses some of the arrays, or it is not known whether an
            earlier call has submitted an array.
    """
    table, arrays = read_table(sweep), sweep.arrays()
    known = 0 if again else len(arrays)
    script = read_script(sweep.files, os.environ)
    exclude, size = cluster.exclusions(read_spec(sweep.files)), cluster.array_size()
    parts: dict[int, list[int]] = {}
    for index in indices or table.tasks:
        parts.setdefault(index // size * size, []).append(index)
    found: list[str] = []
    try:
        for number, (offset, tasks) in enumerate(parts.items(), start=known + 1):
            if again and (earlier := _find_array(sweep, cluster, arrays, number, tasks)):
                sweep.record_array(number, Array(earlier, offset, tuple(tasks)))
                found.append(earlier)
                continue
            job_id = cluster.submit_array(
                sweep.files.script,
                content=script,
                sweep_id=sweep.sweep_id,
                number=number,
                tasks=render_tasks([task - offset for task in tasks], table.max_running),
                offset=offset,
                environ=environ,
                exclude=exclude,
                # Slurm limits the running tasks of each array, not of several together.
                after=found[-1] if found and table.max_running else "",
            )
            sweep.record_array(number, Array(job_id, offset, tuple(tasks)))
            found.append(job_id)
    except UsageError as error:  # the cluster refused the request
        if not known and not found:
            remove_tree(sweep.path)
            raise
        what = f"{sweep.sweep_id} is queued in part, as job array {', '.join(found)}"
        raise UnavailableError(
            f"{what if found else f'nothing was queued for {sweep.sweep_id}'}: {error.message}",
            hint=f"queue the rest later: echelon sweep resume {sweep.sweep_id}",
        ) from error
    return found


def submit_packed(
    sweep: SweepDir, cluster: Cluster, environ: Mapping[str, str], indices: Sequence[int]
) -> Attempt:
    """Submit one job that carries out tasks of a sweep side by side.

    Raises:
        UsageError: the cluster refuses the request.
    """
    before = {index: max(sweep.run(index).attempt_numbers(), default=0) for index in indices}

    def record(number: int) -> None:
        write_atomic(sweep.asked(number), json.dumps({"tasks": before}) + "\n")

    for index in indices:
        sweep.cancelled(index).unlink(missing_ok=True)
    try:
        script = read_script(sweep.files, os.environ)
        return queue_attempt(sweep.files, cluster, environ, script, claimed=record)
    except UsageError:
        if not sweep.files.attempt_numbers():
            remove_tree(sweep.path)
        raise


def _find_array(
    sweep: SweepDir, cluster: Slurm, arrays: Sequence[Array], number: int, tasks: Sequence[int]
) -> str:
    """Return the id of an array that an earlier call has submitted; empty if there is none."""
    if number <= len(arrays):
        return arrays[number - 1].job_id
    # The earlier call may have been interrupted before it received sbatch's answer.
    found = cluster.find_submitted(mark_tasks(sweep.sweep_id), number)
    if not found and any(sweep.run(task).path.exists() for task in tasks):
        raise UnavailableError(
            f"it is not known whether all of {sweep.sweep_id} was queued",
            hint=f"show its tasks: echelon sweep table {sweep.sweep_id}",
        )
    return found


def render_tasks(indices: Sequence[int], max_running: int = 0) -> str:
    """Return a value for sbatch's --array: `0-2,7%2` for 0, 1, 2 and 7, two at a time. Pure."""
    parts: list[list[int]] = []
    for index in sorted(indices):
        if parts and index == parts[-1][1] + 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    listed = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
    return f"{listed}%{max_running}" if max_running else listed
