"""A run in a directory of this machine, and what can be asked of it."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.manage.run_status import find_verdict
from echelon.client.manage.waiting import LOOK_S, cancel_all, stop_all, wait_for_run
from echelon.client.python.results import read_results
from echelon.core.jobs import Job
from echelon.launch.function_call import FOLDER, PROGRAM
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import FETCHED, RunDir
from echelon.run.event_log import EventReader
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.rank_logs import RunLogs, Tail
from echelon.run.request import has_controller, read_spec
from echelon.run.verdict import Verdict

_ASK_S = 1.0
"""Seconds between two queries about a job whose output is followed."""


class LocalRun:
    """A run whose directory is on this machine, wherever its jobs are."""

    def __init__(self, run: RunDir, *, trusts: bool = False) -> None:
        """See the class.

        Args:
            run: the run.
            trusts: whether to read results that could execute code of another host, if they were
                fetched from one.
        """
        self._run, self._trusts = run, trusts

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def place(self) -> str:
        return ""

    def job(self) -> Job:
        """Return the current job; UNKNOWN if the cluster does not respond."""
        return Places().job(self._run)

    def wait(self, until_s: float) -> Job:
        """Wait for the run's end, over all its jobs, and return the last one."""
        cluster = cluster_of(self._run)
        return wait_for_run(self._run, cluster, resubmit=True, silent=True, until_s=until_s)

    def results(self, *, every: bool) -> list[Any]:
        """Return the results of a completed run."""
        if not is_function(self._run):
            return [None]
        # What `echelon fetch` brought here is as little trusted as it was on its host.
        brought = (self._run.path / FETCHED).exists()
        return read_results(self._run, every=every, plain=brought and not self._trusts)

    def verdict(self, job: Job) -> Verdict | None:
        """Return why the run failed."""
        return find_verdict(self._run, job)

    def stop(self) -> None:
        if not self.job().over:
            stop_all(self._run, cluster_of(self._run))

    def cancel(self) -> None:
        if not self.job().over:
            cancel_all(self._run, cluster_of(self._run))

    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]:
        """Yield what ranks have printed."""
        read: _Lines | None = None
        asked_s, over = -_ASK_S, not follow
        while True:
            if follow and time.monotonic() - asked_s >= _ASK_S:
                job, asked_s = self.job(), time.monotonic()
                over = job.over and job.state != "UNKNOWN"  # the cluster may not respond
            if self.path.exists():  # otherwise it is a task of a sweep that waits
                read = read or _Lines(self._run, rank)
                yield from read(over=over)
            if over:
                return
            time.sleep(LOOK_S)

    def metrics(self) -> dict[str, list[float]]:
        """Return what was logged, in columns."""
        return read_metrics(self._run)


def is_function(run: RunDir) -> bool:
    """Tell whether a run calls a function that was submitted from Python."""
    return read_spec(run).script.endswith(f"{FOLDER}/{PROGRAM}")


def read_metrics(run: RunDir) -> dict[str, list[float]]:
    """Return what a run has logged, in columns."""
    rows: dict[int, dict[str, float]] = {}
    reader = EventReader(run.metrics, MetricEvent)
    while found := reader.read():
        for record in found:
            event = record.event
            if isinstance(event, StepLogged | ValidationLogged):
                before = "" if isinstance(event, StepLogged) else "validation "
                row = rows.setdefault(event.step, {})
                row |= {f"{before}{name}": float(v) for name, v in event.metrics.items()}
    names = dict.fromkeys(name for row in rows.values() for name in row)
    steps = sorted(rows)
    columns = {name: [rows[step].get(name, math.nan) for step in steps] for name in names}
    return {"step": [float(step) for step in steps], **columns}


class _Lines:
    """Reads what is new in a run's output."""

    def __init__(self, run: RunDir, rank: int | None) -> None:
        self._run, self._rank = run, rank
        wanted = frozenset(() if rank is None else (rank,))
        self._ranks = RunLogs(run.logs, ranks=wanted) if has_controller(run) else None
        self._jobs: dict[Path, Tail] = {}

    def __call__(self, *, over: bool) -> Iterator[str]:
        if self._ranks is not None:
            for line in self._ranks.read(over=over, now_s=math.inf):
                yield f"{line.rank}: {line.text}"
            return
        for attempt in attempts(self._run):  # srun labels the lines of its tasks
            path = find_output(self._run, attempt)
            if attempt.output and path.is_file():
                for _, text in self._jobs.setdefault(path, Tail(path)).read(over=over):
                    if self._rank is None or text.lstrip().startswith(f"{self._rank}: "):
                        yield text.lstrip()
