"""How long backward passes wait for other ranks: in it a straggler shows, who alone never waits."""

import time
from typing import Any

import torch

EVERY_S = 0.05
"""How often a pass is measured, for that costs 15 µs; it stands for those that were not."""


class PeerWait:
    """Measures from a rank's own last gradient to the end of the sum over all ranks.

    DDP asks autograd to be called when all gradients are there, and waits for the others then. Who
    asked before it is called before it. That is what the host sees: where ranks meet on a GPU's
    stream, the host does not wait, and nothing is measured.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """Estimated from those that were measured."""
        self._passes, self._ready_s, self._measured_s = 0, 0.0, 0.0

    def backward(self, loss: torch.Tensor) -> None:
        self._passes += 1
        began_s = time.perf_counter()
        if began_s - self._measured_s < EVERY_S:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        loss.register_hook(self._ask)  # type: ignore[no-untyped-call]
        self._ready_s = began_s
        loss.backward()  # type: ignore[no-untyped-call]
        self._measured_s = time.perf_counter()
        self.seconds += self._passes * (self._measured_s - self._ready_s)
        self._passes = 0

    def _ask(self, _gradient: torch.Tensor) -> None:
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001  as DDP does
        engine.queue_callback(self._be_ready)

    def _be_ready(self) -> None:
        self._ready_s = time.perf_counter()
