"""The agent's side of its zygote: starts it, sends orders, and receives reports about ranks."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from echelon.core.shell import Shell, signal_group
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.protocol.leftovers import remove_files
from echelon.launch.protocol.messages import (
    ZYGOTE_PACKET,
    ForkRank,
    RankForked,
    RankReaped,
    ServeStore,
    SignalRanks,
    StoreUsed,
    ZygoteReady,
    decode,
    encode,
)
from echelon.launch.protocol.program import Program
from echelon.launch.roles import role_command

_MOST_FAILED_STARTS = 2
"""How many zygotes in a row may die before they are ready; the next one preloads nothing."""


class Listener(Protocol):
    """Receives what the zygote reports."""

    def zygote_ready(self, ready: ZygoteReady) -> None: ...

    def zygote_lost(self, status: int) -> None:
        """Handle the end of the zygote and its ranks; the status is negative for a signal."""

    def rank_started(self, started: RankForked) -> None: ...

    def rank_exited(self, exited: RankReaped) -> None: ...

    def store_used(self, used: StoreUsed) -> None: ...


class ZygoteClient:
    """See the module."""

    def __init__(
        self,
        *,
        program: Program,
        preload: tuple[str, ...],
        env: Mapping[str, str],
        log: Path,
        shell: Shell,
        guard: Guard,
        files: AgentFiles,
    ) -> None:
        self._program, self._preload, self._log = program, preload, log
        self._shell, self._guard, self._files = shell, guard, files
        self._env = env
        self._socket: socket.socket | None = None
        self._pid = 0
        self._status: int | None = None
        self._failed_starts = 0

    async def start(self, listener: Listener) -> None:
        """Start the zygote, and pass its reports to the listener for as long as it lives.

        Raises:
            OSError: its log cannot be written.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        preload = self._preload if self._failed_starts < _MOST_FAILED_STARTS else ()
        program = (
            *(self._program.kind, self._program.modules, ",".join(preload)),
            *self._program.argv,
        )
        argv = role_command("zygote", theirs.fileno(), *program)
        self._pid, self._status = 0, None
        self._pid = await self._files.insist(
            lambda: self._shell.start(argv, log=self._log, env=self._env, keep=[theirs.fileno()])
        )
        theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._failed_starts += 1  # reset when it is ready
        self._guard.watch(self._pid)
        asyncio.get_running_loop().add_reader(ours, self._hear, listener)

    def send(
        self, order: ForkRank | ServeStore | SignalRanks, listener: socket.socket | None = None
    ) -> None:
        """Send an order, with a socket for `ServeStore`; does nothing if there is no zygote."""
        if self._socket is None:
            return
        handles = [listener.fileno()] if listener else []
        # Orders are small and the zygote is quick: waiting is simpler than a queue.
        self._socket.setblocking(True)
        try:
            socket.send_fds(self._socket, [json.dumps(encode(order)).encode()], handles)
        except (BrokenPipeError, ConnectionResetError):
            return  # its exit is about to be reported
        finally:
            self._socket.setblocking(False)

    def close(self) -> None:
        """Kill the zygote, and with it its ranks."""
        self._forget()
        if self._pid:
            signal_group(self._pid)
            remove_files([self._pid])

    def collected(self, pid: int, status: int) -> None:
        """Record the exit of a child process, if it is ours; its socket may close later."""
        if pid == self._pid:
            self._status = status

    def _collect(self) -> int:
        """Return the zygote's exit status. Its socket is closed, so it exits or has exited."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self._status is None:
                os.kill(self._pid, signal.SIGKILL)
                _, self._status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(self._status or 0)

    def _forget(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._guard.forget(self._pid)

    def _hear(self, listener: Listener) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(ZYGOTE_PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._forget()
            listener.zygote_lost(self._collect())
            return
        match decode(json.loads(data)):
            case ZygoteReady() as ready:
                self._failed_starts = 0
                listener.zygote_ready(ready)
            case RankForked() as started:
                listener.rank_started(started)
            case RankReaped() as exited:
                listener.rank_exited(exited)
            case StoreUsed() as used:
                listener.store_used(used)
