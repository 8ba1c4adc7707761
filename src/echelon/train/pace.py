"""How long steps take, and how much of that is waiting for data and for other ranks."""

import time
from collections.abc import Callable
from typing import Any

import torch

from echelon.train.stopping import StopBarrier

EVERY_S = 0.05
"""Interval between measured backward passes, since a measurement costs 15 µs. A measured pass also
stands for the unmeasured ones before it."""
_REPORT_S = 0.5
"""Interval between reports to the agent, which measures its node once a second."""


class Pace:
    """Measures the steps between two lines of the log, and reports waiting times to the agent."""

    def __init__(self, stop_barrier: StopBarrier, peer_wait_s: Callable[[], float]) -> None:
        self._stop_barrier, self._peer_wait_s = stop_barrier, peer_wait_s
        self._waited_s = self._reported_s = self._before_s = 0.0
        """Time spent waiting for data: in total, as far as reported, and before this interval."""
        self._due_s = 0.0
        self._since_s, self._since = 0.0, 0
        self.data_wait = 0.0
        """Fraction of the last interval that the loop waited for data."""
        self.step_s = 0.0
        """Mean seconds per step of the last interval, including the wait for data."""

    def begin(self, step: int) -> None:
        self._since_s, self._since = time.perf_counter(), step
        self._before_s = self._waited_s

    def have_data(self, asked_s: float) -> None:
        """Count the wait for data since `asked_s`. Every step calls this."""
        now_s = time.perf_counter()
        self._waited_s += now_s - asked_s
        if now_s > self._due_s:
            self._due_s = now_s + _REPORT_S
            self._report()

    def end(self, step: int) -> None:
        """End an interval and begin the next one."""
        self._report()
        now_s = time.perf_counter()
        self.data_wait = (self._waited_s - self._before_s) / (now_s - self._since_s)
        self.step_s = (now_s - self._since_s) / (step - self._since)
        self.begin(step)

    def _report(self) -> None:
        self._stop_barrier.wait_for_data(self._waited_s - self._reported_s)
        self._stop_barrier.wait_for_peers(self._peer_wait_s())
        self._reported_s = self._waited_s


class PeerWait:
    """Measures the time from a rank's last gradient to the end of the sum over all ranks.

    Every rank waits there for the slowest one, which itself does not wait. DDP queues an autograd
    callback that waits for the other ranks once all gradients are computed; a callback queued
    earlier runs earlier. Where ranks synchronize on a GPU stream, the host does not wait, and
    nothing is measured.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """Estimated from the passes that were measured."""
        self._clock = clock
        self._passes, self._ready_s, self._measured_s = 0, 0.0, -EVERY_S

    def backward(self, loss: torch.Tensor) -> None:
        self._passes += 1
        began_s = self._clock()
        if began_s - self._measured_s < EVERY_S:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        loss.register_hook(self._queue_callback)  # type: ignore[no-untyped-call]
        self._ready_s = began_s
        loss.backward()  # type: ignore[no-untyped-call]
        self._measured_s = self._clock()
        self.seconds += self._passes * (self._measured_s - self._ready_s)
        self._passes = 0

    def _queue_callback(self, _gradient: torch.Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001  as DDP does
        engine.queue_callback(self._note_ready)

    def _note_ready(self) -> None:
        self._ready_s = self._clock()
