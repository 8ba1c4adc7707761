"""What an attempt leaves behind: its events, its verdict, how it ended, and words for people.

Nothing here can end a run or hold it up, whatever storage does: threads write, and only at the
very end is storage waited for, a while.
"""

import atexit
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from echelon.core.atomic_file import write_atomic
from echelon.run.background_writer import AWAY, FULL, BackgroundWriter
from echelon.run.directory import RunDir
from echelon.run.event_log import EventLog
from echelon.run.verdict import Verdict, to_record

PATIENCE_S = 60.0
"""How long an attempt that is over waits for storage to take its last words."""
_SOON_S = 3.0
"""After how much of that it says that it waits."""
_FIRST_S = 1.0
"""How long words for people wait for what they are about."""
_SAY_S = 5.0
"""How long whoever reads the job's output may keep us."""


class NoteTaker(Protocol):
    """Writes an event down."""

    def __call__(self, kind: str, **data: Any) -> None: ...


class Journal:
    """See the module. One per controller: events have one writer."""

    def __init__(self, run: RunDir, attempt: int, say: Callable[[str], None]) -> None:
        self.run, self.attempt = run, attempt
        self._say = say
        self._events = EventLog(run.events_of(f"controller-{attempt}"), clock=time.time)
        # The job's output may be where the run is, or elsewhere: neither waits for the other.
        self._speaker = BackgroundWriter("speaker")
        atexit.register(self._hurry)

    def note(self, kind: str, **data: Any) -> None:
        """Write an event down."""
        self._events.write(kind, **data)

    def report(self, text: str) -> None:
        """Say something to whoever reads the job's output."""
        self._speaker.post(partial(self._speak, text))

    def _speak(self, text: str) -> None:
        # Whoever reads of a verdict may look for it: it is there by then, if storage is.
        self._events.scribe.settle(_FIRST_S)
        with suppress(OSError):
            self._say(text)

    def leave_verdict(self, verdict: Verdict) -> None:
        record = to_record(verdict)
        self.note("verdict", **record)
        self._leave(self.run.verdict, json.dumps(record, indent=1), "why it failed")

    def leave_outcome(self, outcome: dict[str, Any]) -> None:
        """Say how it ended. Who waits for that reads no more output: it has to be there by then."""
        self._speaker.settle(_SAY_S)
        self.note("ended", **outcome)
        self._leave(self.run.outcome(self.attempt), json.dumps(outcome), "how it ended")

    def leave_notice(self, write: Callable[[], None]) -> None:
        """Have a notification recorded before what is left next."""
        self._events.scribe.post(write)

    def settle(self) -> None:
        """Give storage a moment, for somebody who will look at what is written."""
        self._events.scribe.settle(_SOON_S)

    def _leave(self, path: Path, content: str, what: str) -> None:
        def write() -> None:
            try:
                write_atomic(path, f"{content}\n")
            except OSError as error:
                if error.errno in AWAY | FULL:
                    raise  # to try again
                self.report(f"cannot write {what}: {error}")

        self._events.scribe.post(write)

    def close(self) -> None:
        """Wait until all is written; no longer than that makes sense, and then say what is not."""
        scribe = self._events.scribe
        if not scribe.settle(_SOON_S):
            wrong = scribe.trouble or "it does not answer"
            self.report(f"waiting {PATIENCE_S:g} s for the storage of {self.run.path}: {wrong}")
        if not self._events.close(PATIENCE_S - _SOON_S) or scribe.lost:
            wrong = scribe.trouble or "storage did not answer"
            self.report(f"{scribe.undone} records of {self.run.path} were not written: {wrong}")
        self._speaker.close(_SAY_S)
        atexit.unregister(self._hurry)

    def _hurry(self) -> None:
        """Write what can be written while a controller with a fault of its own falls."""
        for scribe in (self._events.scribe, self._speaker):
            scribe.settle(1.0)


def write_error(text: str) -> None:
    """Write a line to where errors go.

    Past Python's own buffer: a thread that storage holds in there would make Python abort at exit.
    """
    left = f"{text}\n".encode(errors="backslashreplace")
    while left:
        left = left[os.write(2, left) :]
