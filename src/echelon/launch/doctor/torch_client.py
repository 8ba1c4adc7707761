"""Client of the process that measures with torch (`train/probe.py`): one order at a time."""

import asyncio
import contextlib
import json
import os
import pkgutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echelon.core.proc import tail
from echelon.core.shell import Shell, signal_group
from echelon.errors import EchelonError

_PROGRAM = "train/probe.py"
_MESSAGE_SIZE = 1 << 17


class TorchClient:
    """Starts the process and gives it orders.

    A process that hangs is killed; the next order starts a new one.
    """

    def __init__(self, shell: Shell, env: Mapping[str, str], log: Path) -> None:
        self._shell, self._log = shell, log
        # Threads started by numpy would not exist in forks.
        self._env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **env}
        self._socket: socket.socket | None = None
        self._pid = 0
        self._busy = asyncio.Lock()

    async def start(self, limit_s: float) -> dict[str, Any]:
        """Start a new process; return what it reports about torch, or an `error`."""
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = pkgutil.get_data("echelon", _PROGRAM)
        assert program is not None
        # -P: otherwise modules in the current directory would shadow others.
        argv = [sys.executable, "-P", "-c", program.decode(), str(theirs.fileno())]
        with theirs:
            try:
                handles = [theirs.fileno()]
                self._pid = self._shell.start(argv, log=self._log, env=self._env, keep=handles)
            except (OSError, EchelonError) as error:
                ours.close()
                return {"error": str(error)}
        ours.setblocking(False)
        self._socket = ours
        return await self._receive(limit_s)

    async def order(
        self, order: Mapping[str, Any], *, limit_s: float, listener: socket.socket | None = None
    ) -> dict[str, Any]:
        """Run a measurement; return the ranks' answers, or an `error`."""
        async with self._busy:
            if self._socket is None and "error" in (torch := await self.start(limit_s)):
                return torch
            assert self._socket is not None
            handles = [listener.fileno()] if listener else []
            try:
                socket.send_fds(self._socket, [json.dumps(order).encode()], handles)
            except OSError as error:
                self.close()
                return {"error": str(error)}
            return await self._receive(limit_s)

    async def _receive(self, limit_s: float) -> dict[str, Any]:
        assert self._socket is not None
        try:
            async with asyncio.timeout(limit_s):
                data = await asyncio.get_running_loop().sock_recv(self._socket, _MESSAGE_SIZE)
        except TimeoutError:
            error = f"did not finish within {limit_s:g} s"
        except OSError as failure:
            error = str(failure)
        else:
            if data:
                found: dict[str, Any] = json.loads(data)
                return found
            lines = tail(self._log).strip().splitlines() or ["the process died without output"]
            error = lines[-1][:300]
        self.close()
        return {"error": error}

    def close(self) -> None:
        """Kill the process and its forks."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            signal_group(self._pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0
