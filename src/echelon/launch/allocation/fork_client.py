"""The owner's side of a fork server: starts it, sends orders, and is told which processes exit."""

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from echelon.core.shell import Shell, signal_group
from echelon.launch.protocol.message_socket import MessageSocket
from echelon.launch.protocol.messages import (
    Exited,
    Fork,
    Kill,
    Message,
    ServerReady,
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
        self._socket = MessageSocket(ours)
        self._waiting: list[tuple[Fork | Kill, int]] | None = []
        """Orders that wait until the server is ready; None once it is."""
        self._socket.listen(self._receive, self._lose)

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
        self._socket.close()
        self._send_waiting()
        signal_group(self.pid, signal.SIGKILL)

    def _send(self, order: Fork | Kill, handle: int) -> None:
        if self._waiting is not None:
            self._waiting.append((order, handle))
            return
        # Orders are small and the server is quick: waiting is simpler than a queue.
        self._socket.send(order, handle, waits=True)
        if handle >= 0:
            os.close(handle)

    def _send_waiting(self) -> None:
        """Send what waits: without a server, this closes the files."""
        waiting, self._waiting = self._waiting or [], None
        for order in waiting:
            self._send(*order)

    def _lose(self) -> None:
        self._send_waiting()
        self._lost()

    def _receive(self, message: Message) -> None:
        match message:
            case ServerReady():
                self._send_waiting()
            case Exited():
                self._exited(message)


def allowed_cpus() -> list[int]:
    """Return the CPUs that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))
