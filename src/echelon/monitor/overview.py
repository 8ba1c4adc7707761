"""All runs of a folder, in a line each: what their controllers wrote, read once."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from echelon.core.records import to_count
from echelon.monitor.state import RunState
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.listing import list_runs

MOST = 200
"""How many are shown, the newest."""
_AT_ONCE_S = 0.3
"""For how long files are read before an answer is given; the rest comes with the next."""
_PATIENCE = 10
"""Looking takes at most so small a part of the time."""


class _Line:
    """One run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._state = RunState(run_id=run.run_id)
        self._readers: dict[int, EventReader] = {}
        self._step, self._read = -1, False

    def read(self) -> None:
        for number in self._run.begun_numbers():
            path = self._run.events_of(f"controller-{number}")
            for event in self._readers.setdefault(number, EventReader(path)).read():
                self._state.feed_event(number, event)
                step = to_count(event.data.get("step" if event.kind != "spent" else "last"))
                if event.kind in ("alive", "spent", "stopped") and step is not None:
                    self._step = step
        self._read = True

    def tell(self) -> dict[str, Any]:
        attempt = self._state.attempt
        return {
            "run": self._run.run_id,
            "phase": self._state.phase if self._read else None,
            "began": attempt.began_s if attempt else None,
            "ended": attempt.ended_s if attempt else None,
            "attempts": len(self._state.attempts),
            "ranks": len(self._state.ranks),
            "step": self._step,
        }


class Overview:
    """See the module."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._rows: list[dict[str, Any]] = []
        self._due_s = 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Return all runs, the newest first."""
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._due_s:
                self._look(began_s)
                self._due_s = began_s + _PATIENCE * (time.monotonic() - began_s)
            return self._rows

    def _look(self, began_s: float) -> None:
        runs = list_runs(self._runs)[: -MOST - 1 : -1]
        self._lines = {run.run_id: self._lines.get(run.run_id) or _Line(run) for run in runs}
        for line in self._lines.values():
            if time.monotonic() - began_s < _AT_ONCE_S:
                with suppress(OSError):  # a run that cannot be read hides no other
                    line.read()
        self._rows = [line.tell() for line in self._lines.values()]
