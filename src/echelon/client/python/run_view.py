"""Runs as Python sees them: views, which hold no state of their own."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from echelon.client.manage.clusters import Places
from echelon.client.manage.locate import locate
from echelon.client.python.hosted_run import HostedRun
from echelon.client.python.local_run import LocalRun
from echelon.core.jobs import Job, describe_job
from echelon.errors import RunFailedError, TimedOutError
from echelon.run.listing import find_run, list_runs
from echelon.run.verdict import Verdict, render

T = TypeVar("T")
_ASK_S = 1.0
"""Seconds between two queries about runs that are waited for together."""
_MOST_SHOWN = 4000
"""Letters of a rank's traceback that an error shows."""


class Source(Protocol):
    """Where a run is, and how it is asked about: see `LocalRun`."""

    @property
    def run_id(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def place(self) -> str: ...
    def job(self) -> Job: ...
    def wait(self, until_s: float) -> Job: ...
    def results(self, *, every: bool) -> list[Any]: ...
    def verdict(self, job: Job) -> Verdict | None: ...
    def stop(self) -> None: ...
    def cancel(self) -> None: ...
    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]: ...
    def metrics(self) -> dict[str, list[float]]: ...


class Run(Generic[T]):
    """A run, by its id: `echelon.Run("train-ab12")`.

    It reads the run's directory whenever it is asked, so it also works in another process, and
    after a reboot.
    """

    def __init__(
        self, name: str = "last", *, runs_dir: str | Path = "", trust_host: bool = False
    ) -> None:
        """Find a run; one that was submitted to another host is asked about there.

        Args:
            name: its id, a unique prefix of it, a job's id, or `last`.
            runs_dir: the directory of runs; by default `ECHELON_RUNS_DIR`, or `runs`.
            trust_host: read results that could execute code of another host here.

        Raises:
            NotFoundError: there is no such run.
        """
        runs = default_runs(runs_dir)
        site, known = (None, name) if runs_dir else locate(name, runs, "", "")
        self._source: Source = (
            LocalRun(find_run(runs, name), trusts=trust_host)
            if site is None
            else HostedRun(site, known, trusts=trust_host)
        )

    @classmethod
    def of(cls, source: Source) -> "Run[T]":
        """Return the view of a run that was found already."""
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
        return self._source.path

    @property
    def job(self) -> Job:
        """The current job, as its cluster sees it."""
        return self._source.job()

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
        return self._source.wait(math.inf if timeout is None else time.monotonic() + timeout)

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
        return self._source.results(every=every)

    def why(self) -> str:
        """Explain why the run failed; empty if it has not."""
        verdict = self._source.verdict(self.job)
        return render(verdict, whole=True, run=self.path) if verdict else ""

    def stop(self) -> None:
        """Ask the run to stop; ranks that use the library save first."""
        self._source.stop()

    def cancel(self) -> None:
        """End the run immediately."""
        self._source.cancel()

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
        return self._source.metrics()

    def __await__(self) -> Generator[object, None, T]:
        return self._await().__await__()

    async def _await(self) -> T:
        while True:
            # In short pieces: a thread cannot be ended if the task is cancelled.
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
    until_s = math.inf if timeout is None else time.monotonic() + timeout
    left = list(of)
    while left:
        for run in list(left):
            with contextlib.suppress(TimedOutError):
                run.wait(0)
                left.remove(run)
                yield run
        if left and time.monotonic() > until_s:
            names = ", ".join(run.id for run in left[:5])
            raise TimedOutError(
                f"{len(left)} runs have not ended in time: {names}", hint="they continue"
            )
        time.sleep(_ASK_S if left else 0)


def _failure(run_id: str, job: Job, verdict: Verdict | None) -> RunFailedError:
    """Return the error of a run that has no result."""
    said = traceback = ""
    if verdict is not None:
        failure = verdict.failure
        who = f" on rank {failure.rank}" if failure.rank is not None else ""
        where = f" ({failure.node})" if failure.node else ""
        said = f": {failure.message}{who}{where}"
        traceback = failure.traceback[-_MOST_SHOWN:]
    error = RunFailedError(
        f"the run '{run_id}' is {job.state}{said}", hint=f"more: echelon why {run_id}"
    )
    if traceback:
        error.add_note(f"On the rank:\n{traceback}")
    return error
