"""The owner's side of a fork server: starts it, sends orders, and is told which processes exit."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from echelon.core.shell import Shell, signal_group
from echelon.launch.protocol.messages import (
    ZYGOTE_PACKET,
    Exited,
    Fork,
    Kill,
    ServerReady,
    decode,
    encode,
)
from echelon.launch.roles import role_command


class ForkClient:
    """See the module."""

    def __init__(
        self,
        shell: Shell,
        *,
        roles: Sequence[str],
        preload: Sequence[str] = (),
        env: Mapping[str, str],
        log: Path,
        exited: Callable[[Exited], None],
        lost: Callable[[], None],
    ) -> None:
        """Start the server.

        Args:
            shell: starts it.
            roles: the programs that it is to fork.
            preload: modules that ranks need.
            env: its variables, which its forks have too.
            log: file for its output.
            exited: called when a process has exited.
            lost: called when the server has exited.
        """
        self._exited, self._lost = exited, lost
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handle = theirs.fileno()
        argv = role_command("fork-server", handle, ",".join(roles), ",".join(preload))
        self.pid = shell.start(argv, log=log, env=env, keep=[handle])
        theirs.close()
        ours.setblocking(False)
        self._socket: socket.socket | None = ours
        self._waiting: list[tuple[Fork | Kill, int]] | None = []
        """Orders that wait until the server is ready; None once it is."""
        asyncio.get_running_loop().add_reader(ours, self._hear)

    def fork(self, order: Fork, handle: int = -1) -> None:
        """Fork a process, which gets the open file `handle`: it is closed here.

        Nothing happens without a server.
        """
        self._send(order, handle)

    def kill(self, number: int) -> None:
        """Kill a process."""
        self._send(Kill(number=number), -1)

    def close(self) -> None:
        """Kill the server, and with it its forks."""
        self._forget()
        signal_group(self.pid, signal.SIGKILL)

    def _send(self, order: Fork | Kill, handle: int) -> None:
        if self._waiting is not None:
            self._waiting.append((order, handle))
            return
        try:
            if self._socket is not None:
                # Orders are small and the server is quick: waiting is simpler than a queue.
                self._socket.setblocking(True)
                handles = [handle] if handle >= 0 else []
                socket.send_fds(self._socket, [json.dumps(encode(order)).encode()], handles)
                self._socket.setblocking(False)
        except (BrokenPipeError, ConnectionResetError):
            pass  # its end is about to be noticed
        finally:
            if handle >= 0:
                os.close(handle)

    def _forget(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        waiting, self._waiting = self._waiting or [], None
        for order in waiting:  # closes their files
            self._send(*order)

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(ZYGOTE_PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._forget()
            self._lost()
            return
        match decode(json.loads(data)):
            case ServerReady():
                waiting, self._waiting = self._waiting or [], None
                for order in waiting:
                    self._send(*order)
            case Exited() as exited:
                self._exited(exited)


def allowed_cpus() -> list[int]:
    """Return the CPUs that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))
