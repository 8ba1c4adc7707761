"""How long backward passes wait for other ranks: all wait for a straggler, which never waits."""

import time
from collections.abc import Callable
from typing import Any

import torch

EVERY_S = 0.05
"""Interval between measured passes, because measuring costs 15 µs. One stands for all since."""


class PeerWait:
    """Measures from a rank's own last gradient to the end of the sum over all ranks.

    DDP registers a callback with autograd that waits for the other ranks. One that was registered
    earlier is called earlier. This is the host's view: on a GPU, ranks wait on its stream, and the
    host measures nothing.
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
        loss.register_hook(self._ask)  # type: ignore[no-untyped-call]
        self._ready_s = began_s
        loss.backward()  # type: ignore[no-untyped-call]
        self._measured_s = self._clock()
        self.seconds += self._passes * (self._measured_s - self._ready_s)
        self._passes = 0

    def _ask(self, _gradient: torch.Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001  as DDP does
        engine.queue_callback(self._be_ready)

    def _be_ready(self) -> None:
        self._ready_s = self._clock()
