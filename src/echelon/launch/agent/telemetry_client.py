"""The agent's side of its node's telemetry: a process whose failures do not affect the run."""

import os
from collections.abc import Mapping
from pathlib import Path

from echelon.core.shell import Shell, signal_group
from echelon.errors import EchelonError
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.protocol.scratch_files import TELEMETRY_NOTES
from echelon.launch.roles import role_command
from echelon.run.directory import RunDir

_MOST = 4096
"""Bytes that are read at once."""


class TelemetryClient:
    """Starts and ends the process, and reads the notes that it writes for users."""

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
        files: AgentFiles,
    ) -> None:
        self._run, self._place = run, (str(attempt), str(node))
        self._scratch, self._env = scratch, env
        self._shell, self._guard, self._files = shell, guard, files
        self._pid = self._read = 0

    async def start(self) -> None:
        log = self._run.logs / "telemetry.log"
        argv = role_command("telemetry", self._run.path, *self._place, self._scratch, os.getpid())
        try:
            self._pid = await self._files.insist(
                lambda: self._shell.start(argv, log=log, env=self._env)
            )
        except (OSError, EchelonError):
            return  # storage is unavailable: nothing is measured
        self._guard.watch(self._pid)

    def collected(self, pid: int) -> None:
        """Record the exit of a child process, if it is ours."""
        if pid == self._pid:
            self._guard.forget(pid)
            self._pid = 0

    def read_notes(self) -> list[str]:
        """Return the lines that it has written since the last call."""
        try:
            with (self._scratch / TELEMETRY_NOTES).open("rb") as file:
                file.seek(self._read)
                whole = file.read(_MOST).rpartition(b"\n")[0]
        except OSError:
            return []
        self._read += len(whole) + bool(whole)
        return whole.decode(errors="replace").splitlines()

    def close(self) -> None:
        if self._pid:
            signal_group(self._pid)
