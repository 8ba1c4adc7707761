"""The agent's end of its node's telemetry: a process whose troubles cost the run nothing."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from echelon.core.rundir import RunDir
from echelon.core.shell import Shell
from echelon.launch.guard import Guard

SAID = "said"
"""The file in the agent's folder where telemetry puts what users should hear."""
_MOST = 4096


class Meter:
    """Starts it, ends it, and reads what it has to say."""

    def __init__(
        self,
        run: RunDir,
        *,
        attempt: int,
        node: int,
        scratch: Path,
        env: Mapping[str, str],
        shell: Shell,
        guard: Guard,
    ) -> None:
        self._run, self._place = run, (str(attempt), str(node))
        self._scratch, self._env = scratch, env
        self._shell, self._guard = shell, guard
        self._pid = self._read = 0

    def start(self) -> None:
        launcher, log = Path(__file__).resolve().parents[2], self._run.logs / "telemetry.log"
        argv = [sys.executable, str(launcher), "telemetry", str(self._run.path)]
        argv += [*self._place, str(self._scratch)]
        try:
            self._pid = self._shell.start(argv, log=log, env=self._env)
        except OSError:
            return  # storage that is away: nothing is measured
        self._guard.watch(self._pid)

    def collected(self, pid: int) -> None:
        """Take note of a dead child, if it is ours."""
        if pid == self._pid:
            self._guard.forget(pid)
            self._pid = 0

    def said(self) -> list[str]:
        """Return what it has said since the last time, line by line."""
        try:
            with (self._scratch / SAID).open("rb") as file:
                file.seek(self._read)
                whole = file.read(_MOST).rpartition(b"\n")[0]
        except OSError:
            return []
        self._read += len(whole) + bool(whole)
        return whole.decode(errors="replace").splitlines()

    def close(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
