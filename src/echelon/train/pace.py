"""How long a loop's steps take, and how much of that is waiting; told to the agent as it goes."""

import time
from collections.abc import Callable

from echelon.train.stopping import StopBarrier

_TELL_S = 0.5
"""How often the agent is told: the node is measured once a second."""


class Pace:
    """Measures a stretch of steps after another: those between two lines of the log."""

    def __init__(self, stop_barrier: StopBarrier, peer_wait_s: Callable[[], float]) -> None:
        self._stop_barrier, self._peer_wait_s = stop_barrier, peer_wait_s
        self._waited_s = self._told_s = self._before_s = 0.0
        """How long data were waited for: in all, as far as told, and before this stretch."""
        self._due_s = 0.0
        self._since_s, self._since = 0.0, 0
        self.data_wait = 0.0
        """Share of the last stretch that the loop waited for data."""
        self.step_s = 0.0
        """Seconds of a step in it, its wait for data included."""

    def begin(self, step: int) -> None:
        self._since_s, self._since = time.perf_counter(), step
        self._before_s = self._waited_s

    def have_data(self, asked_s: float) -> None:
        """Count what was waited for data since it was asked for. Every step calls this."""
        now_s = time.perf_counter()
        self._waited_s += now_s - asked_s
        if now_s > self._due_s:
            self._due_s = now_s + _TELL_S
            self._tell()

    def end(self, step: int) -> None:
        """End a stretch, and begin the next."""
        self._tell()
        now_s = time.perf_counter()
        self.data_wait = (self._waited_s - self._before_s) / (now_s - self._since_s)
        self.step_s = (now_s - self._since_s) / (step - self._since)
        self.begin(step)

    def _tell(self) -> None:
        self._stop_barrier.wait_for_data(self._waited_s - self._told_s)
        self._stop_barrier.wait_for_peers(self._peer_wait_s())
        self._told_s = self._waited_s
