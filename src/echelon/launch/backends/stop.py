"""A request to stop a run."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop the run: why, and how soon."""

    cause: str
    message: str
    exit_code: int
    at_once: bool = False
    """Whether ranks are killed without a grace period."""
    signalled: bool = False
    """Whether the ranks were signalled already."""
    deadline_s: float | None = None
    """When everything must have ended, by `time.monotonic`; None if there is no limit."""
    ask: int = signal.SIGTERM
    """The signal for ranks that do not take part in agreed stops."""


class StopError(Exception):
    """A stop was requested while waiting for something else."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop
