"""How long steps take, and how much of that is waiting for data and for other ranks."""

import contextlib
import random
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
    earlier runs earlier. This one measures the host, which waits with gloo.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """Estimated from the passes that were measured."""
        self._clock = clock
        self._passes, self._ready_s, self._measured_s = 0, 0.0, -EVERY_S

    def begin_step(self) -> None:
        self._passes += 1

    def backward(self, loss: torch.Tensor) -> None:
        began_s = self._clock()
        if began_s - self._measured_s < EVERY_S:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        self._ready_s = began_s
        _call_when_ready(loss, self._note_ready)
        loss.backward()  # type: ignore[no-untyped-call]
        self._measured_s = self._clock()
        self.seconds += self._passes * (self._measured_s - self._ready_s)
        self._passes = 0

    def _note_ready(self) -> None:
        self._ready_s = self._clock()


class StreamWait:
    """Measures the same on a GPU, whose stream waits instead of the host, with two CUDA events.

    In a captured step, each replay records the events again.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        """Estimated from the passes that were measured."""
        self._clock = clock
        self._passes, self._due_s, self._skipped = 0, 0.0, 0
        self._random = random.Random(0)  # noqa: S311  not a secret
        self._ready, self._done, self._in_graphs = _make_events()
        self._recorded = self._captured = False
        """Whether the events are of a step that was not read yet; whether replays record them."""

    def begin_step(self) -> None:
        """Read the events of an earlier step, if the GPU has passed them."""
        now_s = self._clock()
        if self._recorded and now_s >= self._due_s and self._ready.query() and self._done.query():
            wait_ms = self._ready.elapsed_time(self._done)
            if wait_ms >= 0:  # else a replay is between the two
                self.seconds += self._passes * wait_ms / 1000
                self._due_s, self._recorded = now_s + EVERY_S, self._captured
                # Any pass may be next, not only the first one after all ranks have met for a line.
                self._skipped = self._random.randrange(max(1, self._passes))
                self._passes = 0
        self._passes += 1

    def backward(self, loss: torch.Tensor) -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        self._captured = capturing and self._in_graphs
        if not self._captured and (capturing or not self._is_due()):
            loss.backward()  # type: ignore[no-untyped-call]
            return
        _call_when_ready(loss, self._ready.record)
        loss.backward()  # type: ignore[no-untyped-call]
        self._done.record()
        self._recorded = True

    def _is_due(self) -> bool:
        if self._recorded or self._clock() < self._due_s:
            return False
        self._skipped -= 1
        return self._skipped < 0


def _make_events() -> tuple[Any, Any, bool]:
    """Return two events, and whether a CUDA graph can record them at each replay."""
    make: Any = torch.cuda.Event
    with contextlib.suppress(TypeError):  # an older torch
        if torch.version.hip is None:
            return *(make(enable_timing=True, external=True) for _ in range(2)), True
    return *(make(enable_timing=True) for _ in range(2)), False


def _call_when_ready(loss: torch.Tensor, call: Callable[[], None]) -> None:
    """Call a function in the loss's backward pass, after the last gradient."""
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001  as DDP does
    loss.register_hook(lambda _: engine.queue_callback(call))  # type: ignore[no-untyped-call]
