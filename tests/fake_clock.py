"""A clock whose time passes only where something sleeps."""

from collections.abc import Callable

from echelon.core.waiting import Clock


class FakeClock(Clock):
    """Starts at zero; `on_sleep` is called with the time after each sleep."""

    def __init__(self, on_sleep: Callable[[float], None] = lambda _now_s: None) -> None:
        self._now_s, self._on_sleep = 0.0, on_sleep

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, length_s: float) -> None:
        self._now_s += length_s
        self._on_sleep(self._now_s)
