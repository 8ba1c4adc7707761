"""All runs of a folder, one row each, from the events of their controllers."""

import math
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from echelon.core.records import open_regular
from echelon.monitor.accounting import account
from echelon.monitor.openmetrics import RunSample
from echelon.monitor.reading import note_submissions
from echelon.monitor.state import RunState
from echelon.run.attempts import find_clock_lead
from echelon.run.directory import RunDir
from echelon.run.event_log import parse_event
from echelon.run.events import RunEvents
from echelon.run.listing import list_runs
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.request import summarise
from echelon.run.series import read_last_lines

MOST = 200
"""Number of runs that are shown, the newest ones."""
_AT_ONCE_S = 0.3
"""Time limit for reading files per request; the next request reads the rest."""
_LAST_LINES = 20
"""Number of lines from the end of a run's metrics in which the newest are looked for."""
SPEEDS = ("rate", "data_wait")
"""Metrics that are logged with every step, but not what runs are compared by."""
_PATIENCE = 10
"""Reading takes at most one part in this many of the total time."""


class _Line:
    """One run."""

    def __init__(self, run: RunDir) -> None:
        self._state = RunState(run_id=run.run_id, asked=summarise(run))
        self._events, self._read = RunEvents(run), False
        self._run = run
        self._newest: dict[str, float] = {}
        self._measured_s: float | None = None
        """End of the attempt after which its metrics were read; None while it runs."""
        self.known: RunSample | None = None
        """The last result of `sample`."""

    def read(self) -> None:
        for number, record in self._events.read():
            self._state.feed_event(number, record)
        note_submissions(self._run, self._state)
        attempt = self._state.attempt
        ended_s = attempt.ended_s if attempt and attempt.outcome else None
        if ended_s is None or ended_s != self._measured_s:
            self._newest, self._measured_s = newest_metrics(self._run.metrics), ended_s
        self._read = True

    def tell(self) -> dict[str, Any]:
        attempt = self._state.attempt
        return {
            "run": self._state.run_id,
            "command": self._state.asked.command,
            "request": self._state.asked.describe(),
            "phase": self._state.phase if self._read else None,
            "began": self._began_s(),
            "ended": attempt.ended_s if attempt else None,
            "attempts": len(self._state.attempts),
            "ranks": len(self._state.ranks),
            "step": self._state.reported_step,
            "metric": self._find_metric(),
        }

    def _began_s(self) -> float | None:
        """Return when the newest attempt began, by the clock that shows how long it runs."""
        attempt = self._state.attempt
        if attempt is None:
            return None
        over = bool(attempt.outcome)
        return attempt.began_s + (0.0 if over else find_clock_lead(self._run, attempt.number))

    def _find_metric(self) -> tuple[str, float | str | None] | None:
        """Return the name and the newest value of the loss, or of the first metric there is."""
        names = [name for name in self._newest if name not in SPEEDS]
        if not names:
            return None
        name = "loss" if "loss" in names else names[0]
        return name, show_number(self._newest[name])

    def sample(self) -> None:
        """Measure the run, unless it has ended and was measured since."""
        state, attempt = self._state, self._state.attempt
        ended_s = attempt.ended_s if attempt and attempt.outcome else None
        if not self._read or (ended_s and self.known and self.known.ended_s == ended_s):
            return
        self.known = RunSample(
            run=state.run_id,
            phase=state.phase,
            began_s=attempt.began_s if attempt else None,
            ended_s=attempt.ended_s if attempt else None,
            step=state.reported_step,
            attempts=len(state.attempts),
            restarts=state.restarts,
            ranks=len(state.ranks),
            nodes=sum(node.here for node in state.nodes.values()),
            seconds=account(state).seconds,
            metrics=self._newest,
        )


def newest_metrics(path: Path) -> dict[str, float]:
    """Return the newest value of each metric, from the end of the file: it may be large."""
    found: dict[str, float] = {}
    for line in newest_lines(path):
        record = parse_event(line.decode(errors="replace"), MetricEvent)
        if record and isinstance(record.event, StepLogged | ValidationLogged):
            prefix = "" if isinstance(record.event, StepLogged) else "validation/"
            found |= {f"{prefix}{name}": value for name, value in record.event.metrics.items()}
    return found


def newest_lines(path: Path) -> list[bytes]:
    """Return the last lines of a file of metrics; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            _, content = read_last_lines(file, _LAST_LINES)
    except OSError:
        return []
    return content.split(b"\n")


def show_number(value: float | None) -> float | str | None:
    """Return a number as JSON can express it: NaN and infinity as text."""
    return value if value is None or math.isfinite(value) else str(value)


class Overview:
    """Reads all runs of a folder on request, and caches what it has read."""

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

    def samples(self) -> list[RunSample]:
        """Return what is known of all runs that were read, the newest first."""
        self.rows()
        with self._lock:
            began_s = time.monotonic()
            for line in self._lines.values():
                if time.monotonic() - began_s < _AT_ONCE_S:
                    line.sample()
            return [line.known for line in self._lines.values() if line.known]

    def _look(self, began_s: float) -> None:
        runs = list_runs(self._runs)[: -MOST - 1 : -1]
        self._lines = {run.run_id: self._lines.get(run.run_id) or _Line(run) for run in runs}
        for line in self._lines.values():
            if time.monotonic() - began_s < _AT_ONCE_S:
                with suppress(OSError):  # one unreadable run must not hide the others
                    line.read()
        self._rows = [line.tell() for line in self._lines.values()]
