"""A run in a directory of this machine, which is queried at its cluster."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from echelon.client.manage.clusters import cluster_of
from echelon.client.manage.run_jobs import RunJobs, directory_jobs
from echelon.client.manage.run_status import find_verdict
from echelon.client.manage.sweeps import cancel_waiting, find_waiting
from echelon.client.manage.waiting import LOOK_S, cancel_all, stop_all
from echelon.core.jobs import Job
from echelon.core.waiting import Cached, wait_for
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import RunDir
from echelon.run.rank_logs import RunLogs, Tail
from echelon.run.request import has_controller
from echelon.run.verdict import Verdict

_ASK_S = 1.0
"""Seconds between two queries about a job whose output is followed."""


class LocalRun:
    """A run whose directory is on this machine, wherever its jobs are.

    The directory of a task of a sweep may not exist yet.
    """

    place = ""

    def __init__(self, run: RunDir, *, trusts: bool = False, jobs: RunJobs | None = None) -> None:
        """Create the object without a query.

        Args:
            run: the run.
            trusts: whether to read results that were fetched from another host and could execute
                code of that host.
            jobs: the run's jobs; by default, those in the run directory.
        """
        self._run, self.run_id, self.trusts = run, run.run_id, trusts
        self.jobs = jobs or directory_jobs(self._run)

    def path(self) -> Path:
        """Return the run directory."""
        return self._run.path

    def verdict(self, job: Job) -> Verdict | None:
        """Return why the run failed."""
        return find_verdict(self._run, job)

    def end(self, *, now: bool) -> None:
        """End the run immediately, or with time to save; do nothing if it has ended."""
        job = self.jobs.job(self.run_id)
        if job.over:
            return
        if waiting := find_waiting(self._run.path.parent, self.run_id):
            cancel_waiting(*waiting, job)
        else:
            (cancel_all if now else stop_all)(self._run, cluster_of(self._run))
        self.jobs.forget()

    def files(self, *patterns: str) -> AbstractContextManager[RunDir]:  # noqa: ARG002  the directory has all files
        """Return the run directory."""
        return nullcontext(self._run)

    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]:
        """Yield what ranks have printed."""
        find_job = Cached(lambda: self.jobs.job(self.run_id), _ASK_S)
        read: _Lines | None = None
        over = not follow

        def look() -> list[str] | None:
            nonlocal read, over
            if follow:
                job = find_job()
                over = job.over and job.state != "UNKNOWN"  # the cluster may not respond
            if read is None and self._run.path.exists():
                read = _Lines(self._run, rank)
            found = list(read(over=over)) if read else []
            return found if found or over else None

        while not over:
            yield from wait_for(look, every_s=LOOK_S)
        if not follow:
            yield from look() or ()


class _Lines:
    """Reads the new lines of a run's output."""

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
