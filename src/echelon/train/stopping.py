"""Where a training stops, when somebody wants it to: at one step, the same on all ranks.

The controller proposes a step and commits to it when every rank waits there (docs/control-plane.md
has the two phases). A rank looks at its beacon, which costs nothing, after every step.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from echelon.launch.beacon import VARIABLE, Beacon

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
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        path = (os.environ if environ is None else environ).get(VARIABLE, "")
        self._beacon = Beacon.open(Path(path)) if path and Path(path).exists() else None
        self._passed = 0
        self._before: dict[int, Any] = {}
        """What was done about each signal that is held off."""

    def __enter__(self) -> Self:
        if self._beacon is not None:
            self._beacon.passed = self._passed
            if threading.current_thread() is threading.main_thread():
                self._before = {number: signal.signal(number, _hold_off) for number in _HELD_OFF}
        return self

    def __exit__(self, *_: object) -> None:
        if self._beacon is not None:
            self._beacon.passed = _DEAF
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

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
        return False
