"""Report a training's progress: a bar in a terminal, lines elsewhere, and files for programs.

Only rank 0 reports. Steps repeated after a restart have two records; the later one counts.
"""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from echelon.run.background_writer import persist
from echelon.run.event_log import EventWriter
from echelon.run.metrics import StepLogged, ValidationLogged, render_progress
from echelon.train.tensorboard import ScalarWriter
from echelon.train.trackers import TENSORBOARD, Tracker

_LINE_S = 10.0
"""Interval between lines, if there is no terminal for a bar."""
_BAR_S = 0.1
"""Interval between updates of the bar."""
_WRITE_S = 0.1
"""Interval between writes to files. Lines of a faster training are written together: a write may
take longer than a step."""
RETRY_S = 30.0
"""Interval between attempts to write files after a failure."""


class Progress:
    """Reports a training's progress."""

    def __init__(
        self,
        folder: Path | None,
        *,
        speaks: bool,
        epochs: int,
        length: int,
        unit: str,
        loggers: Sequence[str] = (TENSORBOARD,),
        quiet: bool = False,
        clock: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
    ) -> None:
        """Open the files, if there is a directory for them.

        Args:
            folder: directory for `metrics.jsonl` and `tensorboard/`; None writes no files.
            speaks: whether this rank reports.
            epochs: number of epochs.
            length: length of an epoch.
            unit: unit of the length.
            loggers: where metrics go besides `metrics.jsonl` (`trackers.py`).
            quiet: write only files, and print nothing about steps and validations.
            clock: the time of day.
            retry_s: interval between attempts to write files after a failure.
        """
        self._speaks, self._quiet = speaks, quiet
        self._epochs, self._length, self._unit = epochs, length, unit
        self._clock, self._retry_s = clock, retry_s
        self._terminal = sys.stderr.isatty()
        # Draw a bar immediately, but the first line only after the interval.
        self._told_s = -math.inf if self._terminal else time.monotonic()
        self._since_s, self._since = time.monotonic(), 0
        self._folder = folder if speaks else None
        self._metrics: EventWriter | None = None
        self._scalars: ScalarWriter | None = None
        self._missed, self._again_s = 0, 0.0
        self._pending: list[tuple[float, StepLogged | ValidationLogged]] = []
        """Events to write, each with its time."""
        self._due_s = -math.inf
        self._draws = TENSORBOARD in loggers
        if self._folder:
            persist(partial(self._open, self._folder), within_s=retry_s)
        others = [name for name in loggers if name != TENSORBOARD] if speaks else []
        self._trackers = [Tracker(name, self.tell) for name in others]

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics = EventWriter(folder / "metrics.jsonl", clock=self._clock)
        if not self._draws:
            return
        try:
            self._scalars = ScalarWriter(folder / "tensorboard", now_s=self._clock())
        except OSError:
            self._close_files()
            raise

    def begin(self, done: int) -> None:
        """Start measuring the speed, at the start of an epoch or in the middle of one."""
        self._since_s, self._since = time.monotonic(), done

    def update(
        self,
        *,
        step: int,
        epoch: int,
        done: int,
        means: Mapping[str, float],
        data_wait: float | None = None,
    ) -> None:
        """Report the steps since the last call.

        Args:
            step: number of steps in total.
            epoch: counted from 0.
            done: how much of this epoch is done.
            means: mean values, including `loss`.
            data_wait: fraction of the time that the loop waited for data, if it is known.
        """
        if not self._speaks:
            return
        now_s = time.monotonic()
        rate = (done - self._since) / max(1e-9, now_s - self._since_s)
        left = max(0, self._length - done) + (self._epochs - epoch - 1) * self._length
        waited = {} if data_wait is None else {"data_wait": round(data_wait, 4)}
        logged = StepLogged(
            step=step,
            epoch=epoch,
            epochs=self._epochs,
            done=done,
            length=self._length,
            left_s=round(left / rate, 1) if rate else 0.0,
            unit=self._unit,
            metrics={**means, "rate": round(rate, 1), **waited},
        )
        last = done >= self._length
        self._log(logged, at_once=last)
        if self._quiet:
            return
        if last or now_s - self._told_s >= (_BAR_S if self._terminal else _LINE_S):
            self._told_s = now_s
            self._show(render_progress(logged, bar=self._terminal), over=last)

    def end_epoch(self, *, step: int, epoch: int, metrics: Mapping[str, float]) -> None:
        """Report the results of a validation."""
        if not metrics or not self._speaks:
            return
        event = ValidationLogged(step=step, epoch=epoch, metrics=dict(metrics))
        self._log(event, at_once=True)
        if self._quiet:
            return
        shown = "  ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()))
        self.tell(f"epoch {epoch}/{self._epochs}: {shown}")

    def _log(self, event: StepLogged | ValidationLogged, *, at_once: bool) -> None:
        for tracker in self._trackers:
            tracker.log(event.step, _scalars_of(event))
        if self._folder is None:
            return
        self._pending.append((self._clock(), event))
        if at_once or time.monotonic() >= self._due_s:
            self._write(self._folder)

    def flush(self) -> None:
        """Write what waits to be written."""
        if self._folder and self._pending:
            self._write(self._folder)

    def _write(self, folder: Path) -> None:
        events, self._pending = self._pending, []
        self._due_s = time.monotonic() + _WRITE_S
        if self._missed and time.monotonic() < self._again_s:
            self._missed += len(events)
            return
        try:
            if self._metrics is None:
                self._open(folder)
            if self._metrics:
                self._metrics.write_all(events)
            if self._scalars:
                self._scalars.write((at_s, one.step, _scalars_of(one)) for at_s, one in events)
        except OSError as error:  # a full disk must not end a training
            self._close_files()
            self._again_s = time.monotonic() + self._retry_s
            if not self._missed:
                self.tell(f"cannot write metrics, retrying every {self._retry_s:g} s: {error}")
            self._missed += len(events)
        else:
            if self._missed:
                self.tell(f"writing metrics again; {self._missed} records are missing")
            self._missed = 0

    def tell(self, text: str) -> None:
        """Print a line."""
        self._show(text, over=True)

    def _show(self, text: str, *, over: bool) -> None:
        if not self._speaks:
            return
        shown = f"\r\x1b[K{text}{os.linesep if over else ''}" if self._terminal else f"{text}\n"
        with contextlib.suppress(OSError):  # the log may be on the disk that is full
            sys.stderr.write(shown)
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)

    def close(self, *, complete: bool = True) -> None:
        """Close the files, and send what is left to trackers.

        Args:
            complete: whether the training is.
        """
        self.flush()
        self._close_files()
        for tracker in self._trackers:
            tracker.close(complete=complete)

    def _close_files(self) -> None:
        for file in (self._metrics, self._scalars):
            if file:
                with contextlib.suppress(OSError):  # flushing earlier writes may fail
                    file.close()
        self._metrics = self._scalars = None


def _scalars_of(event: StepLogged | ValidationLogged) -> dict[str, float]:
    prefix = "train" if isinstance(event, StepLogged) else "validation"
    return {f"{prefix}/{name}": value for name, value in event.metrics.items()}
