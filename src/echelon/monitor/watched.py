"""One run as shown in browsers: read once a second and sent in parts.

Each part has the version in which it last changed, so that a browser receives only what is new.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from echelon.core.jobs import short_id
from echelon.core.records import render_json
from echelon.monitor.accounting import account
from echelon.monitor.heat import HeatMap, recall
from echelon.monitor.logbook import LogBook, Wanted
from echelon.monitor.reading import RunReader
from echelon.monitor.saves import Saves
from echelon.monitor.snapshot import Curves, describe
from echelon.run.attempts import attempts, find_clock_lead, has_begun, outcome
from echelon.run.directory import RunDir

EVERY_S = 1.0
_COLUMNS = 120
_SILENT_S = 15
"""Seconds without a sample after which the page says so."""
_PATIENCE = 10
"""Reading takes at most one part in this many of the total time, because storage may be slow."""


class Watched:
    """A run that browsers watch. Thread-safe."""

    def __init__(
        self,
        run: RunDir,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._clock, self._timer = run, clock, timer
        self._lock, self._logs_lock = threading.Lock(), threading.Lock()
        self._heat = HeatMap(_COLUMNS)
        # The newest sample shows the current state; `recall` reads older ones in a faster way.
        self._reader = RunReader(run, seen=self._heat.feed, first=1)
        self._saves, self._curves, self._logs = Saves(run.checkpoints), Curves(), LogBook(run.logs)
        self._parts: dict[str, tuple[int, str]] = {}
        self._version = self._ranks = 0
        self._due_s = self._logs_due_s = 0.0
        self._recalled = False
        self._heard = (0.0, self._timer())
        """The time of the newest sample, and when it was read."""

    def news(self, since: int) -> tuple[int, str]:
        """Return the current version, and what has changed since another one, as JSON.

        The text is empty if nothing has changed; since 0, everything has.
        """
        began_s = self._timer()
        with self._lock:
            if began_s >= self._due_s:
                self._look()
                now_s = self._timer()
                self._due_s = began_s + max(0.5 * EVERY_S, _PATIENCE * (now_s - began_s) / 2)
            parts = [f'"{name}":{text}' for name, (at, text) in self._parts.items() if at > since]
            if curves := self._curves.since(since):
                parts.append(f'"curves":{render_json(curves)}')
            if columns := self._heat.since(since, self._ranks):
                parts.append(f'"columns":{render_json(columns)}')
            if not parts:
                return since, ""
            took_ms = 1000 * (self._timer() - began_s)
            parts.append(f'"now":{self._now():.3f},"took":{took_ms:.1f}')
            return self._version, f"{{{','.join(parts)}}}"

    def recall(self) -> bool:
        """Read what ranks did before the page was opened; tell whether that is new."""
        with self._lock:
            attempt = self._reader.state.attempt
            if self._recalled or attempt is None or not self._reader.state.nodes:
                return False
            self._recalled = True
            files = [self._run.telemetry(attempt.number, n, 0) for n in self._reader.state.nodes]
            self._heat.version = self._version
            recall(self._heat, files, _COLUMNS)
            self._version = self._heat.version
            return True

    def _look(self) -> None:
        # One counter for all parts: a column that is added now is newer than what was sent before.
        self._heat.version = self._version
        state = self._reader.read()
        version = self._version = self._heat.version + 1
        self._saves.read()
        self._curves.feed(state.metrics, version)
        self._ranks = len(state.ranks)
        told = describe(state, account(state))
        told["head"] |= {"waiting": self._waiting(), "silent": self._silence()}
        told["checkpoints"] = self._saves.rows
        for name, value in told.items():
            text = render_json(value)
            if self._parts.get(name, (0, ""))[1] != text:
                self._parts[name] = version, text

    def _waiting(self) -> dict[str, str] | None:
        """Return the queued job, if there is one."""
        known = attempts(self._run)
        newest = self._reader.state.attempt
        if not known or (newest and known[-1].number <= newest.number):
            return None
        last = known[-1]
        ended = outcome(self._run, newest.number) if newest else None
        withdrawn = last.after and ended is not None and not ended.next
        if withdrawn or has_begun(self._run, last):
            return None
        return {"job": short_id(last.job_id), "since": last.submitted, "after": last.after}

    def _silence(self) -> int:
        """Return the seconds since the last sample of a running run; 0 if it is recent."""
        state = self._reader.state
        if state.attempt is None or state.attempt.outcome or not state.nodes:
            return 0
        heard_s, now_s = max(node.seen_s for node in state.nodes.values()), self._timer()
        if heard_s != self._heard[0]:
            # By our own clock, which may differ from the run's; but the first sample may be old.
            old_s = 0.0 if self._heard[0] else max(0.0, self._now() - heard_s)
            self._heard = heard_s, now_s - old_s
        silent_s = now_s - self._heard[1]
        return int(silent_s) // 10 * 10 if heard_s and silent_s > _SILENT_S else 0

    def _now(self) -> float:
        """Return the time of day, by the clock that the run's times follow."""
        attempt, now_s = self._reader.state.attempt, self._clock()
        if attempt is None or attempt.outcome:
            return now_s
        return now_s - find_clock_lead(self._run, attempt.number)

    # --- output ---------------------------------------------------------------------------------

    def logs(self, after: int | None, wanted: Wanted) -> dict[str, Any]:
        """Return lines of the ranks' output: the newest, or those after a line number."""
        with self._logs_lock:  # a long search must not block the rest
            began_s = self._timer()
            if began_s >= self._logs_due_s:
                self._logs.read(self._clock())
                took_s = self._timer() - began_s
                self._logs_due_s = began_s + _PATIENCE * took_s
            look = self._logs.show if after is None else partial(self._logs.follow, after)
            return look(wanted)
