"""Send metrics to W&B and MLflow, which show a run as one curve, however many jobs it takes.

A thread does it: training must not wait for a network, and must not end because of one.
"""

import contextlib
import importlib
import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from echelon.errors import UsageError
from echelon.run.background_writer import pauses
from echelon.run.tracker import keep_mlflow

TENSORBOARD = "tensorboard"
_MOST_WAITING = 10_000
"""How many records wait for a slow server; beyond it, the oldest is dropped."""
_BATCH = 100
"""How many records are sent at once."""
RETRY_S, _LONGEST_RETRY_S = 30.0, 600.0
"""Interval between attempts to reach a tracker after a failure: the first, and the longest."""
_COMPLETE_S, _CUT_S = 60.0, 5.0
"""How long the end of a training, or of a rank that stops, waits for the last records."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """Metrics of one step."""

    time_s: float
    step: int
    metrics: Mapping[str, float]


class _Connection(Protocol):
    """A run that is open in a tracker."""

    def send(self, records: Sequence[Record]) -> None: ...

    def finish(self, *, complete: bool) -> None: ...


class _Wandb:
    def __init__(self) -> None:
        wandb: Any = importlib.import_module("wandb")
        # The run's id is in the environment of rank 0.
        folder = None if "WANDB_DIR" in os.environ else os.environ.get("ECHELON_RUN_DIR")
        self._run = wandb.run or wandb.init(dir=folder)
        # W&B refuses a step that is lower than the last one, which a restart goes back to.
        self._run.define_metric("*", step_metric="step")

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            self._run.log({**record.metrics, "step": record.step})

    def finish(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class _Mlflow:
    def __init__(self) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        # It continues the run of MLFLOW_RUN_ID, which agents set if there is one already.
        name = os.environ.get("ECHELON_TRACKER_ID")
        self._id = mlflow.start_run(run_name=name).info.run_id
        keep_mlflow(self._id)
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient()

    def send(self, records: Sequence[Record]) -> None:
        metric = self._mlflow.entities.Metric
        metrics = [
            metric(name, value, int(record.time_s * 1000), record.step)
            for record in records
            for name, value in record.metrics.items()
        ]
        for start in range(0, len(metrics), 1000):  # the most that it takes at once
            self._client.log_batch(self._id, metrics=metrics[start : start + 1000])

    def finish(self, *, complete: bool) -> None:
        self._mlflow.end_run("FINISHED" if complete else "KILLED")


_KINDS: dict[str, Callable[[], _Connection]] = {"wandb": _Wandb, "mlflow": _Mlflow}


def check_loggers(names: Sequence[str]) -> None:
    """Check the names of loggers, and whether their packages are installed.

    Raises:
        UsageError: a name is unknown, or a package is missing.
    """
    if isinstance(names, str):
        raise UsageError(f"loggers={names!r} is a string", hint=f"pass a list: [{names!r}]")
    for name in names:
        if name not in (TENSORBOARD, *_KINDS):
            known = ", ".join((TENSORBOARD, *_KINDS))
            raise UsageError(f"unknown logger {name!r}", hint=f"known are {known}")
        if name in _KINDS and importlib.util.find_spec(name) is None:
            raise UsageError(
                f"loggers={list(names)!r} needs the package {name}",
                hint=f"pip install {name}, in the Python that ranks use",
            )


class Tracker:
    """Sends metrics to one tracker; tries again, ever more rarely, while that fails."""

    def __init__(self, name: str, tell: Callable[[str], None], *, retry_s: float = RETRY_S) -> None:
        """Start sending.

        Args:
            name: `wandb` or `mlflow`.
            tell: prints a line.
            retry_s: interval before the first retry after a failure.
        """
        self._name, self._tell, self._retry_s = name, tell, retry_s
        self._waiting: queue.Queue[Record | None] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._complete = False
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"echelon-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics, a little later."""
        self._put(Record(time.time(), step, dict(metrics)))

    def _put(self, record: Record | None) -> None:
        """Add a record, or the end; if there is no room, the oldest makes some."""
        while True:
            try:
                return self._waiting.put_nowait(record)
            except queue.Full:
                with contextlib.suppress(queue.Empty):
                    self._waiting.get_nowait()
                    self._dropped += 1

    def close(self, *, complete: bool) -> None:
        """Send what is left, within some seconds.

        Args:
            complete: whether the training is; otherwise a later start may continue it.
        """
        self._complete = complete
        self._closing.set()
        self._put(None)
        within_s = _COMPLETE_S if complete else _CUT_S
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._tell(f"{self._name} did not take the last metrics within {within_s:g} s")
        elif self._dropped:
            self._tell(f"{self._name} was too slow: {self._dropped} records are missing there")

    def _work(self) -> None:
        try:
            connection = self._persist(_KINDS[self._name])
            while records := self._take():
                self._persist(partial(connection.send, records))
            connection.finish(complete=self._complete)
        except Exception as error:  # noqa: BLE001 - whatever the package raises
            self._tell(f"the last metrics did not reach {self._name}: {_reason(error)}")

    def _take(self) -> list[Record]:
        """Wait for records; return none after the last one."""
        taken = [self._waiting.get()]
        while taken[-1] is not None and len(taken) < _BATCH:
            try:
                taken.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        if taken[-1] is None and len(taken) > 1:
            self._waiting.put(None)  # for the next call
        return [record for record in taken if record is not None]

    def _persist(self, task: Callable[[], T]) -> T:
        """Run a task until it succeeds, or the training ends."""
        troubled = False
        for pause_s in pauses(self._retry_s, _LONGEST_RETRY_S):
            over = self._closing.is_set()
            try:
                result = task()
            except Exception as error:  # whatever the package raises
                if over:
                    raise
                if not troubled:
                    self._tell(f"cannot send metrics to {self._name}, retrying: {_reason(error)}")
                troubled = True
            else:
                if troubled:
                    self._tell(f"sending metrics to {self._name} again")
                return result
            self._closing.wait(pause_s)
        raise AssertionError("there is always another try")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
