"""Stop all ranks after the same step when a stop is requested.

The controller proposes a step, and commits to it once every rank waits there
(docs/control-plane.md describes the two phases). After every step a rank checks its shared memory,
which costs almost nothing.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any, Self

from echelon.launch.protocol.rank_shm import PASSED, PROPOSED, STEP, find_rank_shm

_LOOK_S = 0.002
"""Poll interval of a rank that waits for the commit."""


_DEAF = -1
_HELD_OFF = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def _hold_off(_number: int, _frame: object) -> None:
    """Do nothing. A handler, because an ignored signal stays ignored in child processes."""


class StoppedRun(SystemExit):
    """Raised after a requested stop, when a checkpoint is saved. Starting the run again resumes it.

    It exits the script like `sys.exit`, because code after the training must not run on a model
    that is only half trained.
    """

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.step = step


class StopBarrier:
    """Stops all ranks after the same step when a stop is requested.

    While it is open, the rank ignores SIGTERM, SIGINT and the warning signal configured by
    `signal_lead`: the controller receives them too, and then stops all ranks at one step.

    In your own training loop, call `reached` after every step. The Trainer uses the lower-level
    methods instead, because it can also stop during validation. Under other launchers no stop is
    ever requested, and this class does nothing.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._beacon = find_rank_shm(os.environ if environ is None else environ)
        self._passed = 0
        self._before: dict[int, Any] = {}
        """Previous handlers of the signals that are ignored while open."""
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
        """Stop taking part, and restore the signal handlers.

        A warning that comes after the last step still does nothing if the script did not handle it
        before: its default action would kill the rank while it saves its results.
        """
        self._came_s = float("inf")
        if self._beacon is not None:
            self._beacon.passed = _DEAF
        for number, handler in self._before.items():
            if (number, handler) != (signal.SIGUSR1, signal.SIG_DFL):
                signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reached(self, step: int) -> bool:
        """Report the number of steps taken, and return whether all ranks stop after this one.

        Call it on every rank after every step. If it returns True, save a checkpoint and leave the
        loop, for example with `sys.exit()`. Starting the run again resumes it from there.
        """
        self.begin(step - 1)  # the first call follows the first step
        self.tell(step)
        return self.arrive()

    def begin(self, step: int) -> None:
        """Report that training begins, and the number of steps taken before."""
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
        """Report the number of steps taken."""
        if self._beacon is not None:
            self._beacon.numbers[STEP] = int(step)

    def pass_by(self) -> bool:
        """Former name of `arrive`, kept for one release."""
        warnings.warn("StopBarrier.pass_by is now arrive", DeprecationWarning, stacklevel=2)
        return self.arrive()

    def arrive(self) -> bool:
        """Return whether to stop here; at a proposed step, wait for the controller's decision.

        Every rank must call it equally often: after each step and each validation batch.
        """
        beacon = self._beacon
        if beacon is None:
            return False
        self._passed += 1
        came_s = time.monotonic()
        if came_s - self._came_s > self._longest_s:
            self._longest_s = came_s - self._came_s
            beacon.stop_interval_us = int(self._longest_s * 1e6)
        self._came_s = came_s
        proposed = beacon.numbers[PROPOSED]
        if proposed <= 0 or proposed != self._passed:
            beacon.numbers[PASSED] = self._passed
            return False
        beacon.waiting = self._passed
        beacon.passed = self._passed
        while beacon.proposed == proposed:
            if beacon.committed == proposed:
                return True
            time.sleep(_LOOK_S)
        beacon.waiting = 0
        self._came_s = time.monotonic()  # exclude the wait here from the rank's own time
        return False
