"""The process that starts the tasks of a sweep on this machine or on Ray, some at a time."""

import contextlib
import os
from collections.abc import Mapping, Sequence

from echelon.client.manage.trust import read_script
from echelon.client.manage.waiting import RunWatch, cancel_all, stop_all, wait_or_end
from echelon.client.submit.runs import submit_run
from echelon.clusters.base import Cluster
from echelon.clusters.local import LocalCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.notes import note
from echelon.core.proc import start_time
from echelon.core.waiting import CLOCK, Clock, wait_for
from echelon.errors import UnavailableError
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, make_run, read_table

_LOOK_S = 0.2
"""Seconds between two checks of tasks."""


def record_runner(sweep: SweepDir, pid: int, place: str) -> None:
    """Record the process that starts tasks on this machine or on Ray."""
    write_atomic(
        sweep.carrier, f"{os.uname().nodename} {pid} {start_time(pid) or 'gone'} {place}\n"
    )


def has_runner(sweep: SweepDir) -> bool:
    """Tell whether a process will start the tasks that were not started yet.

    A process on another host is assumed to be alive.
    """
    with contextlib.suppress(OSError, ValueError):
        host, pid, start, _ = sweep.carrier.read_text().split()
        alive = host != os.uname().nodename or start_time(int(pid)) == start
        return alive and not sweep.stopped.exists()
    return False


def run(
    sweep: SweepDir,
    cluster: Cluster,
    environ: Mapping[str, str],
    indices: Sequence[int],
    *,
    at_once: int,
    clock: Clock = CLOCK,
) -> list[int]:
    """Run tasks on this machine or on Ray, some at a time, and return those that failed.

    Ctrl-C asks the running tasks to stop; a second one ends them.
    """
    record_runner(sweep, os.getpid(), "local" if isinstance(cluster, LocalCluster) else "ray")
    tasks = _Tasks(sweep, cluster, environ, indices, at_once=at_once, clock=clock)
    wait_or_end(lambda _: wait_for(tasks.look, every_s=_LOOK_S, clock=clock), tasks.end)
    return tasks.failed


class _Tasks:
    """Tasks that wait, run or have failed."""

    def __init__(
        self,
        sweep: SweepDir,
        cluster: Cluster,
        environ: Mapping[str, str],
        indices: Sequence[int],
        *,
        at_once: int,
        clock: Clock,
    ) -> None:
        self._sweep, self._cluster, self._environ = sweep, cluster, environ
        self._waiting, self._at_once, self._clock = list(indices), at_once, clock
        self._running: dict[int, RunWatch] = {}
        self.failed: list[int] = []

    def look(self) -> bool | None:
        """Start tasks, and drop those that have ended; return True once none is left."""
        if self._sweep.stopped.exists():
            self.failed += self._waiting  # for good: `sweep resume` removes that file
            self._waiting.clear()
        while self._waiting and len(self._running) < self._at_once:
            index = self._waiting[0]
            if self._sweep.cancelled(index).exists():
                self.failed.append(index)
            else:
                started = start_task(self._sweep, index, self._cluster, self._environ)
                self._running[index] = RunWatch(started, self._cluster, clock=self._clock)
            del self._waiting[0]
        for index, watch in list(self._running.items()):
            self._drop_ended(index, watch)
        return None if self._running or self._waiting else True

    def _drop_ended(self, index: int, watch: RunWatch) -> None:
        stopped = self._sweep.stopped.exists() or self._sweep.cancelled(index).exists()
        with contextlib.suppress(UnavailableError):  # the task may be fine
            if job := watch.look(resubmit=not stopped):
                del self._running[index]
                note(f"{watch.run.run_id}: {job.state}{f' ({job.reason})' if job.reason else ''}")
                self.failed += [index] if job.state != "COMPLETED" else []

    def end(self, now: bool) -> None:
        """Start no more tasks, and end those that run: immediately, or with time to save."""
        self._sweep.stopped.touch(mode=0o600)
        for watch in self._running.values():
            (cancel_all if now else stop_all)(watch.run, self._cluster)


def start_task(sweep: SweepDir, index: int, cluster: Cluster, environ: Mapping[str, str]) -> RunDir:
    """Create the run of a task, unless it exists, and submit its next attempt."""
    found, _ = make_run(sweep, index)
    submit_run(found, cluster, environ, read_script(found, os.environ))
    values = read_table(sweep).parameters(index)
    note(f"{found.run_id}: started with {' '.join(f'{k}={v}' for k, v in values.items())}")
    return found
