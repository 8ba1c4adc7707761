"""How a training tells of itself: a bar in a terminal, lines elsewhere, JSON for programs.

Rank 0 alone speaks. In a run of Echelon's the JSON lines go to the run's events.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from echelon.core.events import EventWriter
from echelon.train.process_group import Group

_BAR = 24
_LINE_S = 5.0
"""Between two lines where there is no terminal to draw a bar in."""


class Progress:
    """Tells how far a training is."""

    def __init__(self, world: Group, *, epochs: int, samples: int) -> None:
        self._speaks = world.rank == 0
        self._epochs, self._samples = epochs, samples
        self._terminal = sys.stderr.isatty()
        self._began_s = self._told_s = time.monotonic()
        self._seen = 0
        self._last_done = -1
        run = os.environ.get("ECHELON_RUN_DIR", "")
        folder = Path(run) / "events"
        self._events = None
        if self._speaks and run and folder.is_dir():
            self._events = EventWriter(folder / f"rank-{world.rank}.jsonl", clock=time.time)

    def update(self, *, step: int, epoch: int, done: int, loss: float) -> None:
        """Tell of a step; `done` counts the samples of this epoch."""
        if not self._speaks:
            return
        if self._last_done < 0 or done < self._last_done:
            self._last_done, self._began_s, self._seen = done, time.monotonic(), 0
        self._seen += done - self._last_done
        self._last_done = done
        now_s = time.monotonic()
        rate = self._seen / max(1e-9, now_s - self._began_s)
        if self._events:
            self._events.write("step", step=step, epoch=epoch, loss=loss, rate=round(rate, 1))
        last = done >= self._samples
        if not self._terminal and now_s - self._told_s < _LINE_S and not last:
            return
        self._told_s = now_s
        left_s = (self._samples - done) / rate if rate else 0.0
        share = done / max(1, self._samples)
        bar = f"[{'#' * int(_BAR * share):<{_BAR}}] " if self._terminal else ""
        self._show(
            f"epoch {epoch + 1}/{self._epochs} {bar}{share:4.0%}  loss {loss:.4f}  "
            f"{rate:,.0f} samples/s  {left_s:.0f} s left",
            over=last,
        )

    def end_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Tell what validation found."""
        if not self._speaks:
            return
        if self._events:
            self._events.write("epoch", epoch=epoch, metrics=dict(metrics))
        shown = "  ".join(f"{name} {value:.4f}" for name, value in sorted(metrics.items()))
        if shown:
            self.tell(f"epoch {epoch}/{self._epochs}: {shown}")

    def tell(self, text: str) -> None:
        if self._speaks:
            self._show(text, over=True)

    def _show(self, text: str, *, over: bool) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}{chr(10) if over else ''}")
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._events:
            self._events.close()
            self._events = None
