"""Starts the tasks of a sweep on this machine or on Ray, a limited number at a time."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echelon.client.manage.waiting import RunWatch, cancel_all, stop_all, submit_next, wait_or_end
from echelon.client.submit.trust import read_script
from echelon.clusters.base import Cluster, queue_attempt
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
    """Record the process that starts the tasks of a sweep."""
    write_atomic(
        sweep.carrier, f"{os.uname().nodename} {pid} {start_time(pid) or 'gone'} {place}\n"
    )


def has_runner(sweep: SweepDir) -> bool:
    """Tell whether a process will start the remaining tasks.

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
    """Run tasks on this machine or on Ray, `at_once` at a time; return those that failed.

    The first Ctrl-C stops the running tasks, and the second one cancels them.
    """
    record_runner(sweep, os.getpid(), "local" if isinstance(cluster, LocalCluster) else "ray")
    tasks = _Tasks(sweep, cluster, environ, list(indices), at_once, clock)
    wait_or_end(lambda _: wait_for(tasks.look, every_s=_LOOK_S, clock=clock), tasks.end)
    return tasks.failed


@dataclass
class _Tasks:
    """Tasks that wait, run or have failed."""

    sweep: SweepDir
    cluster: Cluster
    environ: Mapping[str, str]
    waiting: list[int]
    at_once: int
    clock: Clock
    running: dict[int, RunWatch] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)

    def look(self) -> bool | None:
        """Start tasks, and drop those that have ended; return True once all have ended."""
        if self.sweep.stopped.exists():
            self.failed += self.waiting  # this process starts no more, even if the file is removed
            self.waiting.clear()
        while self.waiting and len(self.running) < self.at_once:
            index = self.waiting[0]
            if self.sweep.cancelled(index).exists():
                self.failed.append(index)
            else:
                started = start_task(self.sweep, index, self.cluster, self.environ)
                self.running[index] = RunWatch(started, self.cluster, clock=self.clock)
            del self.waiting[0]
        for index, watch in list(self.running.items()):
            self._drop_ended(index, watch)
        return None if self.running or self.waiting else True

    def _drop_ended(self, index: int, watch: RunWatch) -> None:
        stopped = self.sweep.stopped.exists() or self.sweep.cancelled(index).exists()
        with contextlib.suppress(UnavailableError):  # the task may still be running
            job, run = watch.look(), self.sweep.run(index)
            if job is None or (not stopped and submit_next(run, self.cluster)):
                return
            del self.running[index]
            note(f"{run.run_id}: {job.state}{f' ({job.reason})' if job.reason else ''}")
            self.failed += [index] if job.state != "COMPLETED" else []

    def end(self, now: bool) -> None:
        """Start no more tasks, and end the running ones: immediately, or with time to save."""
        self.sweep.stopped.touch(mode=0o600)
        for index in self.running:
            (cancel_all if now else stop_all)(self.sweep.run(index), self.cluster)


def start_task(sweep: SweepDir, index: int, cluster: Cluster, environ: Mapping[str, str]) -> RunDir:
    """Create the run of a task, unless it exists, and submit its next attempt."""
    found, _ = make_run(sweep, index)
    queue_attempt(found, cluster, environ, read_script(found, os.environ))
    values = read_table(sweep).parameters(index)
    note(f"{found.run_id}: started with {' '.join(f'{k}={v}' for k, v in values.items())}")
    return found
