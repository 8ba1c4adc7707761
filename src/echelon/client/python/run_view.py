"""The runs of the Python interface: views without state of their own."""

import asyncio
import contextlib
import math
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from echelon.client.manage.clusters import Places
from echelon.client.manage.locate import locate
from echelon.client.manage.run_jobs import RunJobs
from echelon.client.manage.waiting import keeping_run
from echelon.client.python.hosted_run import HostedRun
from echelon.client.python.local_run import LocalRun
from echelon.client.python.results import is_function, name_files, read_results
from echelon.core.jobs import Job, describe_job
from echelon.core.waiting import CLOCK, wait_for
from echelon.errors import NotFoundError, RunFailedError, TimedOutError
from echelon.run.directory import FETCHED, RunDir
from echelon.run.event_log import EventReader
from echelon.run.listing import find_run, list_runs
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.verdict import Verdict, render

T = TypeVar("T")
_ASK_S = 1.0
"""Seconds between two queries by `as_completed`."""
_MOST_SHOWN = 4000
"""How many characters of a rank's traceback an error shows."""


class RunSource(Protocol):
    """Access to a run, on this machine or on a host."""

    run_id: str
    place: str
    """The end of `repr`: ` on HOST`, or empty."""
    trusts: bool
    """Whether to read results that could execute code of another host here."""
    jobs: RunJobs

    def path(self) -> Path:
        """Return the run directory, on the host where it is."""

    def verdict(self, job: Job) -> Verdict | None:
        """Return why the run failed; None if it has not."""

    def end(self, *, now: bool) -> None:
        """End the run immediately, or with time to save."""

    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]:
        """Yield what ranks have printed."""

    def files(self, *patterns: str) -> AbstractContextManager[RunDir]:
        """Return the run directory, or a temporary copy with these files."""


class Run(Generic[T]):
    """A run, by its id: `echelon.Run("train-ab12")`.

    Each call reads the run directory, so a view also works in another process, and after a reboot.
    """

    def __init__(
        self, name: str = "last", *, runs_dir: str | Path = "", trust_host: bool = False
    ) -> None:
        """Find a run, on this machine or on the host to which it was submitted.

        Args:
            name: its id, a unique prefix of it, a job's id, or `last`.
            runs_dir: the directory of runs; by default `ECHELON_RUNS_DIR`, or `runs`.
            trust_host: read results that could execute code of another host here.

        Raises:
            NotFoundError: there is no such run.
        """
        runs = default_runs(runs_dir)
        site, known = (None, name) if runs_dir else locate(name, runs, "", "")
        self._source: RunSource = (
            LocalRun(find_run(runs, name), trusts=trust_host)
            if site is None
            else HostedRun(site, known, trusts=trust_host)
        )

    @classmethod
    def of(cls, source: RunSource) -> "Run[T]":
        """Return a view of a run."""
        made = object.__new__(cls)
        made._source = source
        return made

    @property
    def id(self) -> str:
        """The run's id."""
        return self._source.run_id

    @property
    def path(self) -> Path:
        """The run directory, on the host where it is."""
        return self._source.path()

    @property
    def job(self) -> Job:
        """The current job, as its cluster sees it."""
        return self._source.jobs.job(self.id)

    @property
    def state(self) -> str:
        """The state of the current job, in Slurm's words, such as PENDING or COMPLETED.

        UNKNOWN if the cluster does not respond.
        """
        return self.job.state

    def wait(self, timeout: float | None = None) -> str:
        """Wait until the run has ended, over all its jobs, and return its state.

        Args:
            timeout: how long to wait, in seconds; None waits as long as it takes.

        Raises:
            TimedOutError: it has not ended by then.
        """
        return self._wait(timeout).state

    def _wait(self, timeout: float | None) -> Job:
        jobs = self._source.jobs
        with keeping_run(self.id):
            return wait_for(
                lambda: jobs.ended().get(self.id),
                every_s=jobs.every_s,
                until_s=_until_s(timeout),
                late=lambda: TimedOutError(
                    f"the run '{self.id}' has not ended in time",
                    hint="it continues: wait again, or stop it",
                ),
            )

    def result(self, timeout: float | None = None) -> T:
        """Wait for the run, and return what its function returned on rank 0.

        None for a run of a script.

        Raises:
            RunFailedError: the run has failed; its notes have the traceback of the rank.
            TimedOutError: the run has not ended in time.
        """
        return self._results(timeout, every=False)[0]

    def results(self, timeout: float | None = None) -> list[T]:
        """Wait for the run, and return what its function returned on each rank; see `result`."""
        return self._results(timeout, every=True)

    def _results(self, timeout: float | None, *, every: bool) -> list[T]:
        job = self._wait(timeout)
        if job.state != "COMPLETED":
            raise _failure(self.id, job, self._source.verdict(job))
        with self._source.files("spec.toml") as run:
            if not is_function(run):
                return [cast("T", None)]
            # Fetched files are from another host, whose pickles are not trusted either.
            plain = (run.path / FETCHED).exists() and not self._source.trusts
        with self._source.files("spec.toml", name_files(every=every, plain=plain)) as run:
            return read_results(run, every=every, plain=plain)

    def why(self) -> str:
        """Explain why the run failed; empty if it has not."""
        verdict = self._source.verdict(self.job)
        return render(verdict, whole=True, run=self.path) if verdict else ""

    def stop(self) -> None:
        """Ask the run to stop; ranks that use the library save first."""
        self._source.end(now=False)

    def cancel(self) -> None:
        """End the run immediately."""
        self._source.end(now=True)

    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the lines that ranks have printed, each with its rank: `0: step 1`.

        Args:
            follow: continue until the run ends.
            rank: only this rank's lines.
        """
        return self._source.lines(follow=follow, rank=rank)

    def metrics(self) -> dict[str, list[float]]:
        """Return what the run has logged, in columns: `step`, and one per metric.

        Columns of a validation begin with `validation`. Where a step has no value, there is NaN.
        `pandas.DataFrame(run.metrics())` makes a table of it.
        """
        try:
            with self._source.files("spec.toml", "metrics.jsonl") as run:
                return _read_metrics(run)
        except NotFoundError:  # a run on a host has logged no metrics
            return {"step": []}

    def __await__(self) -> Generator[object, None, T]:
        return self._await().__await__()

    async def _await(self) -> T:
        while True:
            # A thread cannot be cancelled with its task, so each one waits only for a short time.
            with contextlib.suppress(TimedOutError):
                return await asyncio.to_thread(self.result, _ASK_S)

    def __repr__(self) -> str:
        job = self.job
        where = f" {describe_job(job.id)}" if job.id else ""
        return f"<Run {self.id}: {job.state}{where}{self._source.place}>"

    def __eq__(self, other: object) -> bool:
        mine = (self.id, self._source.place)
        return isinstance(other, Run) and mine == (other.id, other._source.place)

    def __hash__(self) -> int:
        return hash(self.id)


def default_runs(runs_dir: str | Path = "") -> Path:
    """Return the directory of runs: a given one, the environment's, or `runs`."""
    return Path(runs_dir or os.environ.get("ECHELON_RUNS_DIR") or "runs").absolute()


def runs(*, state: str = "", runs_dir: str | Path = "") -> list[Run[object]]:
    """Return the runs of a directory, the oldest first.

    Args:
        state: only those in this state, such as `failed`.
        runs_dir: the directory; by default `ECHELON_RUNS_DIR`, or `runs`.
    """
    places, found = Places(), list_runs(default_runs(runs_dir))
    wanted = [run for run in found if not state or places.job(run).state == state.upper()]
    return [Run.of(LocalRun(run)) for run in wanted]


def as_completed(of: Iterable[Run[T]], timeout: float | None = None) -> Iterator[Run[T]]:
    """Yield runs as they end.

    Args:
        of: the runs.
        timeout: how long to wait for all of them, in seconds.

    Raises:
        TimedOutError: some have not ended by then.
    """
    until_s = _until_s(timeout)
    left = [(run, run._source.jobs) for run in of]  # noqa: SLF001  not part of the public class

    def look() -> list[Run[T]] | None:
        known = {jobs: jobs.ended() for jobs in {jobs for _, jobs in left}}
        return [run for run, jobs in left if known[jobs].get(run.id)] or None

    def late() -> TimedOutError:
        names = ", ".join(run.id for run, _ in left[:5])
        return TimedOutError(
            f"{len(left)} runs have not ended in time: {names}", hint="they continue"
        )

    while left:
        ended = wait_for(look, every_s=_ASK_S, until_s=until_s, late=late)
        left = [one for one in left if one[0] not in ended]
        yield from ended


def _until_s(timeout: float | None) -> float:
    return math.inf if timeout is None else CLOCK.now_s() + timeout


def _read_metrics(run: RunDir) -> dict[str, list[float]]:
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


def _failure(run_id: str, job: Job, verdict: Verdict | None) -> RunFailedError:
    """Return the error of a run that has no result."""
    message = traceback = ""
    if verdict is not None:
        failure = verdict.failure
        who = f" on rank {failure.rank}" if failure.rank is not None else ""
        where = f" ({failure.node})" if failure.node else ""
        message = f": {failure.message}{who}{where}"
        traceback = failure.traceback[-_MOST_SHOWN:]
    error = RunFailedError(
        f"the run '{run_id}' is {job.state}{message}", hint=f"more: echelon why {run_id}"
    )
    if traceback:
        error.add_note(f"On the rank:\n{traceback}")
    return error
