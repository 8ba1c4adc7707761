"""Where agents connect to their controller: only peers that prove that they know the key may.

Any host on the network may connect, any number of times. Such peers learn nothing, and cannot use
up the file descriptors that agents need, an agent's place in the queue, or disk space.

Under a flood the kernel's queue is full, and connections wait in it. By the time an agent's
connection is accepted, its first bytes have arrived (`wire.py`), so no silent stranger takes its
place. An agent whose connection the kernel drops tries again at once.
"""

import asyncio
import resource
import secrets
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from echelon.errors import UnavailableError
from echelon.launch.pool.controller_events import AgentHandle
from echelon.launch.protocol.link import HANDSHAKE_S, Link
from echelon.launch.protocol.messages import Hello, Message
from echelon.launch.protocol.rank_environment import KEY_SIZE
from echelon.launch.protocol.wire import KNOCK, WireError, has_knocked
from echelon.run.events import StrangerRejected
from echelon.run.journal import NoteTaker

STRANGERS = 1024
"""Limit of connections that have sent nothing yet; beyond it, the oldest is closed. It is lower if
the process may not open four times as many files."""
_BATCH = 64
"""Connections that are accepted in a row before other work is done."""
_BACKLOG = 4096
_PAUSE_S = 0.1
"""Pause after a connection could not be accepted."""


class AgentServer:
    """See the module."""

    def __init__(
        self,
        nodes: int,
        *,
        key: bytes = b"",
        received: Callable[[AgentHandle, Message], None],
        lost: Callable[[AgentHandle, str], None],
        note: NoteTaker,
    ) -> None:
        self.key = key or secrets.token_bytes(KEY_SIZE)
        """The key that agents have to know; by default a new one."""
        self._nodes, self._note = nodes, note
        self._received, self._lost = received, lost
        """Called with each message of an agent, its greeting first, and when it is lost."""
        self._listeners: list[socket.socket] = []
        self._silent: dict[socket.socket, _Caller] = {}
        """Peers that have not knocked, the oldest first. They are plain sockets: there may be many,
        and an asyncio connection takes ten times as long to create."""
        self._knocked: dict[Link, None] = {}
        """Peers that have knocked and have yet to prove that they know the key."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = 0

    async def open(
        self, addresses: Sequence[str], listen: Callable[[str], socket.socket] | None = None
    ) -> list[str]:
        """Listen on those of our addresses where that is possible; return them with their ports.

        Raises:
            UnavailableError: it is possible on none.
        """
        heard = []
        for address in addresses:
            try:
                listener = (listen or listen_at)(address)
            except OSError:
                continue
            heard.append(f"{address}:{listener.getsockname()[1]}")
            self._listeners.append(listener)
            self._resume(listener)
        if not heard:
            raise UnavailableError(
                f"the controller cannot listen at any of {', '.join(addresses) or 'no address'}",
                hint="check the addresses of this host (ip address) against those that Slurm knows",
            )
        self._spawn(self._end_late())
        return heard

    def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for peer in list(self._silent):
            self._take(peer)
            peer.close()

    def make_link(self, first: bytes = b"") -> Link:
        """Return our end of the connection to a peer that has knocked.

        Args:
            first: what it has sent so far.
        """
        agent: AgentHandle | None = None

        def received(link: Link, message: Message) -> None:
            nonlocal agent
            if agent is None and isinstance(message, Hello):
                agent = AgentHandle(hello=message, link=link)
            if agent is not None:
                self._received(agent, message)

        def lost(link: Link, reason: str) -> None:
            self._know(link)
            if agent is not None:
                self._lost(agent, reason)
            else:
                self._turn_away(link.peer_address, reason)

        link = Link(
            self.key, "controller", opened=self._know, received=received, lost=lost, first=first
        )
        self._knocked[link] = None
        if len(self._knocked) > self._nodes + _room():  # a knock is being replayed
            oldest = next(iter(self._knocked))
            self._know(oldest)
            oldest.drop("too many peers connected without proving that they know the key")
        return link

    def _know(self, link: Link) -> None:
        """Remove a peer from the unknown ones: it has proved that it knows the key, or is gone."""
        self._knocked.pop(link, None)

    def _turn_away(self, address: str, reason: str) -> None:
        """Log the first stranger, then every thousandth, so that a flood does not fill a disk."""
        self._strangers += 1
        if self._strangers == 1 or self._strangers % 1000 == 0:
            self._note(StrangerRejected(address=address, reason=reason, count=self._strangers))

    # --- peers that have not knocked ------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_BATCH):
            try:
                peer, (address, _port) = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError:  # too many open files, most likely
                self._make_room(0)
                loop.remove_reader(listener)
                loop.call_later(_PAUSE_S, self._resume, listener)
                return
            peer.setblocking(False)
            self._silent[peer] = _Caller(address, loop.time())
            if self._listen(peer):
                loop.add_reader(peer, self._listen, peer)
        self._make_room(_room())

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _listen(self, peer: socket.socket) -> bool:
        """Read more of a peer's first bytes; return whether more are expected."""
        caller = self._silent[peer]
        try:
            data = peer.recv(KNOCK - len(caller.sent))
            caller.sent += data
            knocked = has_knocked(self.key, caller.sent)
        except (BlockingIOError, InterruptedError):
            return True
        except (OSError, WireError) as error:
            self._refuse(peer, str(error))
            return False
        if not data:
            self._refuse(peer, "the connection was closed")
        elif knocked:
            self._take(peer)
            self._spawn(self._admit(peer, bytes(caller.sent)))
        return bool(data) and not knocked

    async def _admit(self, peer: socket.socket, first: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self.make_link(first), peer)

    async def _end_late(self) -> None:
        """Close connections that take too long to send their first bytes."""
        while True:
            await asyncio.sleep(HANDSHAKE_S / 10)
            limit_s = asyncio.get_running_loop().time() - HANDSHAKE_S
            late = [peer for peer, caller in self._silent.items() if caller.since_s < limit_s]
            for peer in late:
                self._refuse(peer, f"no handshake within {HANDSHAKE_S:g} s")

    def _make_room(self, room: int) -> None:
        while len(self._silent) > room:
            self._refuse(next(iter(self._silent)), "too many peers connected and sent nothing")

    def _refuse(self, peer: socket.socket, reason: str) -> None:
        caller = self._take(peer)
        peer.close()
        self._turn_away(caller.address, reason)

    def _take(self, peer: socket.socket) -> "_Caller":
        asyncio.get_running_loop().remove_reader(peer)
        return self._silent.pop(peer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Caller:
    """A peer that has not knocked."""

    __slots__ = ("address", "sent", "since_s")

    def __init__(self, address: str, since_s: float) -> None:
        self.address, self.since_s = address, since_s
        self.sent = bytearray()


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens on any port of an address.

    Raises:
        OSError: the address is not ours.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
    except OSError:
        listener.close()
        raise
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def _room() -> int:
    """Return how many unknown peers may wait, so that file descriptors are left for agents."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(STRANGERS, files // 4)
