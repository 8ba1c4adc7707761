"""The process that starts the tasks of a sweep on this machine or on Ray, some at a time."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence

from echelon.client.manage.run_status import current_job
from echelon.client.manage.waiting import cancel_all, stop_all, submit_next
from echelon.client.submit.queueing import queue_attempt
from echelon.client.submit.trust import read_script
from echelon.clusters.base import Cluster
from echelon.clusters.local import LocalCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.notes import note
from echelon.core.proc import start_time
from echelon.errors import UnavailableError
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, make_run, read_table

_LOOK_S = 0.2
"""Seconds between two checks of tasks."""


def record_carrier(sweep: SweepDir, pid: int, place: str) -> None:
    """Record the process that starts tasks on this machine or on Ray."""
    write_atomic(
        sweep.carrier, f"{os.uname().nodename} {pid} {start_time(pid) or 'gone'} {place}\n"
    )


def is_carried(sweep: SweepDir) -> bool:
    """Tell whether a process will start the tasks that were not started yet.

    It is not known of another host.
    """
    with contextlib.suppress(OSError, ValueError):
        host, pid, start, _ = sweep.carrier.read_text().split()
        alive = host != os.uname().nodename or start_time(int(pid)) == start
        return alive and not sweep.stopped.exists()
    return False


def carry_out(
    sweep: SweepDir,
    cluster: Cluster,
    environ: Mapping[str, str],
    indices: Sequence[int],
    *,
    at_once: int,
) -> list[int]:
    """Run tasks on this machine or on Ray, some at a time, and return those that failed.

    Ctrl-C asks the running tasks to stop; a second one ends them.
    """
    here = isinstance(cluster, LocalCluster)
    record_carrier(sweep, os.getpid(), "local" if here else "ray")
    waiting, failed = list(indices), []
    running: dict[int, RunDir] = {}
    interrupted = False
    try:
        while running or waiting:
            try:
                if sweep.stopped.exists():
                    failed += waiting  # for good: whoever resumes the sweep removes that file
                    waiting.clear()
                while waiting and len(running) < at_once:
                    if sweep.cancelled(waiting[0]).exists():
                        failed.append(waiting[0])
                    else:
                        running[waiting[0]] = start_task(sweep, waiting[0], cluster, environ)
                    del waiting[0]
                failed += _drop_ended(sweep, running, cluster)
                time.sleep(_LOOK_S)
            except KeyboardInterrupt:
                note("stopping" + ("" if interrupted else "; press Ctrl-C again to end at once"))
                sweep.stopped.touch(mode=0o600)
                for run in running.values():
                    (cancel_all if interrupted else stop_all)(run, cluster)
                interrupted = True
    except BaseException:
        for run in running.values():
            cancel_all(run, cluster)
        raise
    return failed


def _drop_ended(sweep: SweepDir, running: dict[int, RunDir], cluster: Cluster) -> list[int]:
    """Remove tasks that have ended, and return those of them that are not complete."""
    failed = []
    for index, run in list(running.items()):
        stopped = sweep.stopped.exists() or sweep.cancelled(index).exists()
        try:
            job = current_job(run, cluster)
            continues = job.over and not stopped and submit_next(run, cluster)
        except UnavailableError:  # the task may be fine
            continue
        if job.over and not continues:
            del running[index]
            note(f"{run.run_id}: {job.state}{f' ({job.reason})' if job.reason else ''}")
            failed += [index] if job.state != "COMPLETED" else []
    return failed


def start_task(sweep: SweepDir, index: int, cluster: Cluster, environ: Mapping[str, str]) -> RunDir:
    """Create the run of a task, unless it exists, and submit its next attempt."""
    run, _ = make_run(sweep, index)
    queue_attempt(run, cluster, environ, read_script(run, os.environ))
    values = read_table(sweep).parameters(index)
    note(f"{run.run_id}: started with {' '.join(f'{k}={v}' for k, v in values.items())}")
    return run
