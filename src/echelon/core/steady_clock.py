"""The time of day as it passes: a clock that somebody sets moves no recorded time."""

import time
from collections.abc import Callable

SET_S = 10.0
"""A clock that differs by more was set: smaller corrections do not matter."""


class SteadyClock:
    """The time of day, as if the clock had not been set since this object was created."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._booted_s = clock() - _uptime()

    def now(self) -> float:
        return self._booted_s + _uptime()


def _uptime() -> float:
    """Return the seconds since the machine started; unlike `monotonic`, also those asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
