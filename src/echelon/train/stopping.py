"""Stopping at the same step on all ranks, when a stop was requested.

The controller proposes a step, and commits to it when every rank waits there
(docs/control-plane.md describes the two phases). After every step a rank looks at its shared
memory, which costs next to nothing.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any, Self

from echelon.launch.protocol.rank_shm import find_rank_shm

_LOOK_S = 0.002
"""Poll interval of a rank that waits for the commit."""


_DEAF = -1
_HELD_OFF = (signal.SIGTERM, signal.SIGUSR1)


def _hold_off(_number: int, _frame: object) -> None:
    """Do nothing. A handler, because an ignored signal stays ignored in child processes."""


class StoppedRun(SystemExit):
    """The training was asked to stop and has saved; the next start of the run resumes it.

    It ends the script as `sys.exit` does, because code after the training must not run on a model
    that is only half trained.
    """

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.step = step


class StopBarrier:
    """A rank's side of the agreed stop: all ranks stop after the same step.

    While it is open the rank takes part: SIGTERM and the warning signal that `signal_lead` asks
    for are held off, because the agent gets them too and then has all ranks stop at one step.

    A loop of your own calls `reached` after every step. The Trainer calls the parts that it is
    made of, because it can also stop during a validation. Under other launchers nobody asks for a
    stop, and it does nothing.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._beacon = find_rank_shm(os.environ if environ is None else environ)
        self._passed = 0
        self._before: dict[int, Any] = {}
        """The handlers of the signals that are held off, from before."""
        self._came_s, self._longest_s = float("inf"), 0.0
        """When the rank last arrived, and the longest time between two arrivals."""

    def open(self) -> None:
        """Take part in agreed stops from now on."""
        if self._beacon is not None:
            self._beacon.passed = self._passed
            self._beacon.began_us = max(self._beacon.began_us, 0)
            if threading.current_thread() is threading.main_thread():
                self._before = {number: signal.signal(number, _hold_off) for number in _HELD_OFF}

    def close(self) -> None:
        """Take part no longer; signals do again what they did before."""
        self._came_s = float("inf")
        if self._beacon is not None:
            self._beacon.passed = _DEAF
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reached(self, step: int) -> bool:
        """Report how many steps were taken, and return whether all ranks stop after this one.

        Every rank calls it after every step. When it returns true, save and leave the loop, for
        example with `sys.exit()`: the run resumes from there when it is started again.
        """
        self.begin(step - 1)  # this one was the first
        self.tell(step)
        return self.arrive()

    def begin(self, step: int) -> None:
        """Report that training begins, and how many steps were taken before."""
        if self._beacon is not None and self._beacon.began_us <= 0:
            self._beacon.first = step
            self._beacon.began_us = self._beacon.elapsed_us()

    def wait_for_data(self, waited_s: float) -> None:
        """Report how long the loop has waited for data since the last report."""
        if self._beacon is not None:
            self._beacon.data_us = max(0, self._beacon.data_us) + int(waited_s * 1e6)

    def wait_for_peers(self, waited_s: float) -> None:
        """Report how long the loop has waited for other ranks in total."""
        if self._beacon is not None:
            self._beacon.comm_us = int(waited_s * 1e6)

    def tell(self, step: int) -> None:
        """Report how many steps were taken."""
        if self._beacon is not None:
            self._beacon.step = step

    def pass_by(self) -> bool:
        """Do what `arrive` does; the old name, for one release."""
        warnings.warn("StopBarrier.pass_by is now arrive", DeprecationWarning, stacklevel=2)
        return self.arrive()

    def arrive(self) -> bool:
        """Return whether to stop here; waits for the controller where all ranks may stop.

        Every rank calls it equally often: after each step, and each batch of a validation.
        """
        beacon = self._beacon
        if beacon is None:
            return False
        self._passed += 1
        came_s = time.monotonic()
        if came_s - self._came_s > self._longest_s:
            self._longest_s = came_s - self._came_s
            beacon.pass_us = int(self._longest_s * 1e6)
        self._came_s = came_s
        proposed = beacon.proposed
        if proposed <= 0 or proposed != self._passed:
            beacon.passed = self._passed
            return False
        beacon.waiting = self._passed
        beacon.passed = self._passed
        while beacon.proposed == proposed:
            if beacon.committed == proposed:
                return True
            time.sleep(_LOOK_S)
        beacon.waiting = 0
        self._came_s = time.monotonic()  # what it waited here was not its own time
        return False
