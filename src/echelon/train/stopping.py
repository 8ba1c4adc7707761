"""Where a training stops, when somebody wants it to: at one step, the same on all ranks.

The controller proposes a step and commits to it when every rank waits there (docs/control-plane.md
has the two phases). A rank looks at its beacon, which costs nothing, after every step.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from echelon.launch.beacon import find_beacon

_LOOK_S = 0.002
"""How often a rank that waits for the commit looks."""


_DEAF = -1
_HELD_OFF = (signal.SIGTERM, signal.SIGUSR1)


def _hold_off(_number: int, _frame: object) -> None:
    """Do nothing: a handler, for what is ignored would stay so in programs that we start."""


class StoppedRun(SystemExit):
    """The training was asked to stop, has saved, and goes on with the next start of the run.

    It ends the script as `sys.exit` would: what comes after the training must not run on a model
    that is half trained.
    """

    def __init__(self, step: int) -> None:
        super().__init__(0)
        self.step = step


class StopLine:
    """A rank's side of agreeing where to stop, and its word of how far it is.

    Inside `with` the rank listens: what Slurm sends to every process of a job that is to end
    (SIGTERM, or the signal that `signal_lead` asks for) is held off, for the agent gets it too, and
    then all ranks stop at one place.

    A loop of one's own asks `reached` after every step; the Trainer, which has more to tell and
    stops in a validation too, uses what it is made of. Under other launchers nobody asks for a
    stop, and it does nothing.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._beacon = find_beacon(os.environ if environ is None else environ)
        self._passed = 0
        self._before: dict[int, Any] = {}
        """What was done about each signal that is held off."""
        self._came_s, self._longest_s = float("inf"), 0.0
        """When it last came by, and the longest time between two such."""

    def __enter__(self) -> Self:
        if self._beacon is not None:
            self._beacon.passed = self._passed
            self._beacon.began_us = max(self._beacon.began_us, 0)
            if threading.current_thread() is threading.main_thread():
                self._before = {number: signal.signal(number, _hold_off) for number in _HELD_OFF}
        return self

    def __exit__(self, *_: object) -> None:
        self._came_s = float("inf")
        if self._beacon is not None:
            self._beacon.passed = _DEAF
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def reached(self, step: int) -> bool:
        """Tell how many steps were taken, and return whether this is where all ranks stop.

        Every rank calls it after every step. When it is true the loop saves and leaves, with
        `sys.exit()` say, and the run goes on from there when it is started again.
        """
        self.begin(step - 1)  # this one was the first
        self.tell(step)
        return self.pass_by()

    def begin(self, step: int) -> None:
        """Tell the agent that all is ready, and how many steps had been taken before."""
        if self._beacon is not None and self._beacon.began_us <= 0:
            self._beacon.first = step
            self._beacon.began_us = self._beacon.elapsed_us()

    def wait_for_data(self, waited_s: float) -> None:
        """Tell the agent for how long the loop has waited for data since the last word of it."""
        if self._beacon is not None:
            self._beacon.data_us = max(0, self._beacon.data_us) + int(waited_s * 1e6)

    def wait_for_peers(self, waited_s: float) -> None:
        """Tell the agent for how long it has waited for other ranks, all in all."""
        if self._beacon is not None:
            self._beacon.comm_us = int(waited_s * 1e6)

    def tell(self, step: int) -> None:
        """Tell the agent how far the training is."""
        if self._beacon is not None:
            self._beacon.step = step

    def pass_by(self) -> bool:
        """Return whether to stop here; waits for the word when here is where it may be.

        Every rank comes by here equally often: after each step, and each batch of a validation.
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
