"""Why and how soon a run is to stop."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody wants the run to stop."""

    cause: str
    message: str
    exit_code: int
    at_once: bool = False
    """Whether ranks get no time to react."""
    told: bool = False
    """Whether whoever wants it has signalled the ranks already."""
    deadline_s: float | None = None
    """When all of it has to be over, by `time.monotonic`; None where nobody says."""


class StopError(Exception):
    """Somebody wants the run to stop, while something else was waited for."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop
