"""Runs as Python sees them: views of their directories, which hold no state of their own."""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from echelon.api.places import Places, cluster_of
from echelon.api.results import read_results
from echelon.api.runs import current_job, find_verdict
from echelon.api.waiting import LOOK_S, cancel_all, stop_all, wait_for_run
from echelon.core.jobs import Job, describe_job
from echelon.errors import RunFailedError, TimedOutError
from echelon.launch.function_call import FOLDER, PROGRAM
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.listing import find_run, list_runs
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.rank_logs import RunLogs, Tail
from echelon.run.request import has_controller, read_spec
from echelon.run.verdict import render

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster

T = TypeVar("T")
_ASK_S = 1.0
"""Seconds between two queries about runs that are waited for together."""
_TELLING = 4000
"""Letters of a remote traceback that an error shows."""


class Run(Generic[T]):
    """A run, by its id: `echelon.Run("train-ab12")`.

    It reads the run's directory whenever it is asked, so it also works in another process, and
    after a reboot.
    """

    def __init__(self, name: str = "last", *, runs_dir: str | Path = "") -> None:
        """Find a run.

        Args:
            name: its id, a unique prefix of it, a job's id, or `last`.
            runs_dir: the directory of runs; by default `ECHELON_RUNS_DIR`, or `runs`.

        Raises:
            NotFoundError: there is no such run.
        """
        self._run = find_run(default_runs(runs_dir), name)

    @classmethod
    def of(cls, run: RunDir) -> "Run[T]":
        """Return the view of a run directory."""
        made = cls.__new__(cls)
        made._run = run  # noqa: SLF001  its own
        return made

    @property
    def id(self) -> str:
        """The run's id."""
        return self._run.run_id

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    @property
    def job(self) -> Job:
        """The current job, as its cluster sees it."""
        return Places().job(self._run)

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
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        cluster = cluster_of(self._run)
        return wait_for_run(self._run, cluster, resubmit=True, silent=True, until_s=until_s).state

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
        self.wait(timeout)
        job = current_job(self._run, cluster_of(self._run))
        if job.state != "COMPLETED":
            raise _failure(self._run, job)
        if not read_spec(self._run).script.endswith(f"{FOLDER}/{PROGRAM}"):
            return [None]  # type: ignore[list-item]  # T is None for scripts
        return read_results(self._run, every=every)

    def why(self) -> str:
        """Explain why the run failed; empty if it has not."""
        verdict = find_verdict(self._run, self.job)
        return render(verdict, whole=True, run=self._run.path) if verdict else ""

    def stop(self) -> None:
        """Ask the run to stop; ranks that use the library save first."""
        if not self.job.over:
            stop_all(self._run, cluster_of(self._run))

    def cancel(self) -> None:
        """End the run immediately."""
        if not self.job.over:
            cancel_all(self._run, cluster_of(self._run))

    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the lines that ranks have printed, each with its rank: `0: step 1`.

        Args:
            follow: continue until the run ends.
            rank: only this rank's lines.
        """
        read = _Lines(self._run, rank)
        cluster: Cluster = cluster_of(self._run)
        asked_s = -_ASK_S
        over = not follow
        while True:
            if follow and time.monotonic() - asked_s >= _ASK_S:
                over, asked_s = current_job(self._run, cluster).over, time.monotonic()
            yield from read(over=over)
            if over:
                return
            time.sleep(LOOK_S)

    def metrics(self) -> dict[str, list[float]]:
        """Return what the run has logged, in columns: `step`, and one per metric.

        Columns of a validation begin with `validation`. Where a step has no value, there is NaN.
        `pandas.DataFrame(run.metrics())` makes a table of it.
        """
        rows: dict[int, dict[str, float]] = {}
        reader = EventReader(self._run.metrics, MetricEvent)
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
        return f"<Run {self.id}: {job.state}{where}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._run.path == other._run.path

    def __hash__(self) -> int:
        return hash(self._run.path)


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
    return [Run.of(run) for run in wanted]


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


class _Lines:
    """Reads what is new in a run's output."""

    def __init__(self, run: RunDir, rank: int | None) -> None:
        self._run, self._rank = run, rank
        self._ranks = RunLogs(run.logs, rank=rank) if has_controller(run) else None
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


def _failure(run: RunDir, job: Job) -> RunFailedError:
    """Return the error of a run that has no result."""
    verdict = find_verdict(run, job)
    said, traceback = "", ""
    if verdict is not None:
        failure = verdict.failure
        who = f" on rank {failure.rank}" if failure.rank is not None else ""
        where = f" ({failure.node})" if failure.node else ""
        said = f": {failure.message}{who}{where}"
        traceback = failure.traceback[-_TELLING:]
    error = RunFailedError(
        f"the run '{run.run_id}' is {job.state}{said}", hint=f"more: echelon why {run.run_id}"
    )
    if traceback:
        error.add_note(f"On the rank:\n{traceback}")
    return error
