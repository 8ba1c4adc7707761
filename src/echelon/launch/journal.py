"""What an attempt leaves behind: its events, its verdict, how it ended, and words for people.

Nothing here can end a run: on a full disk it goes on, or ends, as it would.
"""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from echelon.core.events import EventWriter
from echelon.core.rundir import RunDir, write_atomic
from echelon.launch.verdict import Verdict, to_record


class Journal:
    """See the module. One per controller: events have one writer."""

    def __init__(self, run: RunDir, attempt: int, say: Callable[[str], None]) -> None:
        self.run, self.attempt = run, attempt
        self._say = say
        self._events = EventWriter(run.events_of(f"controller-{attempt}"), clock=time.time)

    def note(self, kind: str, **data: Any) -> None:
        """Write an event down."""
        with contextlib.suppress(OSError):
            self._events.write(kind, **data)

    def report(self, text: str) -> None:
        """Say something to whoever reads the job's output."""
        with contextlib.suppress(OSError):
            self._say(text)

    def leave_verdict(self, verdict: Verdict) -> None:
        self.note("verdict", **to_record(verdict))
        with contextlib.suppress(OSError):
            write_atomic(self.run.verdict, json.dumps(to_record(verdict), indent=1) + "\n")

    def leave_outcome(self, outcome: dict[str, Any]) -> None:
        self.note("ended", **outcome)
        try:
            write_atomic(self.run.outcome(self.attempt), json.dumps(outcome) + "\n")
        except OSError as error:  # whoever waits for us has the exit code
            self.report(f"cannot write how it ended: {error}")

    def close(self) -> None:
        self._events.close()
