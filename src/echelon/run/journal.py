"""What an attempt writes: its events, verdict and outcome, and messages for people.

Storage that fails or hangs neither ends nor blocks a run: threads write. Only at the very end does
an attempt wait for storage, for a limited time.
"""

import atexit
import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.codec import encode
from echelon.core.steady_clock import SET_S, SteadyClock
from echelon.run.attempts import Outcome
from echelon.run.background_writer import AWAY, FULL, BackgroundWriter
from echelon.run.directory import RunDir
from echelon.run.event_log import EventLog
from echelon.run.events import (
    AttemptEnded,
    ClockSet,
    ControllerEvent,
    EventsLost,
    Heartbeat,
    RankExited,
    RankStarted,
    VerdictReached,
)
from echelon.run.verdict import Verdict

PATIENCE_S = 60.0
"""How long an attempt that is over waits for storage to take its last records."""
_SOON_S = 3.0
"""How long it waits before it reports that it is waiting."""
_FIRST_S = 1.0
"""How long a message waits for the records that it refers to."""
_SAY_S = 5.0
"""How long a slow reader of the job's output may block us."""


_log = logging.getLogger(__name__)

NoteTaker = Callable[[ControllerEvent], None]
"""Records an event."""


class Journal:
    """Writes the files of one attempt. One per controller: an event file has one writer."""

    def __init__(
        self,
        run: RunDir,
        attempt: int,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.attempt = run, attempt
        self._say, self._clock = say, clock
        self.now = SteadyClock(clock).now
        """Returns the time of day, as if the clock had not been set since the start."""
        self._ahead_s = 0.0
        self._events = EventLog(
            run.events_of(f"controller-{attempt}"),
            clock=self.now,
            tell_lost=lambda count: EventsLost(count=count),
        )
        # The job's output may be on other storage than the run: neither waits for the other.
        self._output = BackgroundWriter("output")
        atexit.register(self._flush)

    def note(self, event: ControllerEvent) -> None:
        """Record an event."""
        ahead_s = self._clock() - self.now()
        if abs(ahead_s - self._ahead_s) > SET_S:
            self._ahead_s = ahead_s
            self._events.write(ClockSet(seconds=round(ahead_s, 3)))
        self._events.write(event)
        _log_event(event)

    def report(self, text: str) -> None:
        """Write a message to the job's output."""
        _log.info("%s", text)
        self._output.post(partial(self._write_report, text))

    def _write_report(self, text: str) -> None:
        # A reader of this message may look for the records: write them first, if storage allows.
        self._events.writer.settle(_FIRST_S)
        with suppress(OSError):
            self._say(text)

    def leave_verdict(self, verdict: Verdict) -> None:
        self.note(VerdictReached.of(verdict))
        self._leave(self.run.verdict, json.dumps(asdict(verdict), indent=1), "the verdict")

    def leave_outcome(self, outcome: Outcome) -> None:
        """Record how the attempt ended, after its output: followers stop reading at the outcome."""
        self._output.settle(_SAY_S)
        record = asdict(outcome)
        self.note(AttemptEnded(**record))
        self._leave(self.run.outcome(self.attempt), json.dumps(record), "the outcome")

    def leave_notice(self, write: Callable[[], None]) -> None:
        """Record a notification, before the verdict and outcome that follow."""
        self._events.writer.post(write)

    def settle(self) -> None:
        """Wait a moment for storage, on behalf of a program that reads the records next."""
        self._events.writer.settle(_SOON_S)

    def _leave(self, path: Path, content: str, what: str) -> None:
        def write() -> None:
            try:
                write_atomic(path, f"{content}\n")
            except OSError as error:
                if error.errno in AWAY | FULL:
                    raise  # the writer retries it
                self.report(f"cannot write {what}: {error}")

        self._events.writer.post(write)

    def close(self) -> None:
        """Wait until everything is written, for a limited time; then report what was not."""
        writer = self._events.writer
        if not writer.settle(_SOON_S):
            wrong = writer.trouble or "it does not answer"
            self.report(f"waiting {PATIENCE_S:g} s for the storage of {self.run.path}: {wrong}")
        if not self._events.close(PATIENCE_S - _SOON_S) or writer.lost:
            wrong = writer.trouble or "storage did not answer"
            self.report(f"{writer.undone} records of {self.run.path} were not written: {wrong}")
        self._output.close(_SAY_S)
        atexit.unregister(self._flush)

    def _flush(self) -> None:
        """Write what can be written when an exception ends the controller."""
        for writer in (self._events.writer, self._output):
            writer.settle(1.0)


def _log_event(event: ControllerEvent) -> None:
    """Add an event to the debug log; of events that are many, only at the level `debug`."""
    match event:
        case Heartbeat() | RankStarted() | RankExited(code=0, signal=0):
            level = logging.DEBUG
        case _:
            level = logging.INFO
    if _log.isEnabledFor(level):
        values = encode(event).items()
        shown = " ".join(f"{name}={value!r}" for name, value in values if value != "")
        _log.log(level, "event %s %s", event.kind, shown)


def write_error(text: str) -> None:
    """Write a line to stderr.

    Not through Python's buffer: a thread that blocks in there would make Python abort at exit.
    """
    left = f"{text}\n".encode(errors="backslashreplace")
    while left:
        left = left[os.write(2, left) :]
