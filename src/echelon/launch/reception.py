"""Where agents reach their controller: who shows that it knows the key is let in.

Anybody on the network may knock, as often as they like. They learn nothing, and take nothing away:
neither files that agents need, nor room on the disk.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence

from echelon.errors import UnavailableError
from echelon.launch.contract import KEY_SIZE
from echelon.launch.entries import Agent
from echelon.launch.journal import NoteTaker
from echelon.launch.link import Link
from echelon.launch.messages import Hello, Message

STRANGERS = 64
"""Connections beyond one per node that may be without a handshake. With more the oldest is dropped:
else whoever opens enough of them would take all the files that a process may have open."""
_BACKLOG = 4096


class Reception:
    """See the module."""

    def __init__(
        self,
        nodes: int,
        *,
        received: Callable[[Agent, Message], None],
        lost: Callable[[Agent, str], None],
        note: NoteTaker,
    ) -> None:
        self.key = secrets.token_bytes(KEY_SIZE)
        """What agents have to know."""
        self._nodes, self._note = nodes, note
        self._received, self._lost = received, lost
        """Who is told what an agent says, its greeting first, and that it is gone."""
        self._servers: list[asyncio.Server] = []
        self._unknown: dict[Link, None] = {}
        """Who has connected and not shown that it knows the key, the oldest first."""
        self._strangers = 0

    async def open(self, addresses: Sequence[str]) -> list[str]:
        """Listen at those of our addresses where that can be done; return them with their ports.

        Raises:
            UnavailableError: there is none.
        """
        heard = []
        for address in addresses:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((address, 0))
            except OSError:
                listener.close()
                continue
            heard.append(f"{address}:{listener.getsockname()[1]}")
            # asyncio accepts as many at once as the backlog says, before it does anything else.
            server = await asyncio.get_running_loop().create_server(
                self.make_link, sock=listener, backlog=STRANGERS
            )
            listener.listen(_BACKLOG)
            self._servers.append(server)
        if not heard:
            raise UnavailableError(
                f"the controller can listen at none of {', '.join(addresses) or 'no address'}",
                hint="see what this host has: ip address; Echelon takes the one that others reach",
            )
        return heard

    def close(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()

    def make_link(self) -> Link:
        """Return our end of a connection that somebody has opened."""
        agent: Agent | None = None

        def received(link: Link, message: Message) -> None:
            nonlocal agent
            if agent is None and isinstance(message, Hello):
                agent = Agent(hello=message, link=link)
            if agent is not None:
                self._received(agent, message)

        def lost(link: Link, reason: str) -> None:
            self._know(link)
            if agent is not None:
                self._lost(agent, reason)
            else:
                self._turn_away(link, reason)

        link = Link(self.key, "controller", opened=self._know, received=received, lost=lost)
        self._unknown[link] = None
        if len(self._unknown) > self._nodes + STRANGERS:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.drop("too many have connected and said nothing")
        return link

    def _know(self, link: Link) -> None:
        """Forget that it was unknown: it has shown the key, or is gone."""
        self._unknown.pop(link, None)

    def _turn_away(self, link: Link, reason: str) -> None:
        """Log the first stranger, and then every thousandth: one who floods us fills no disk."""
        self._strangers += 1
        if self._strangers == 1 or self._strangers % 1000 == 0:
            self._note("stranger", address=link.peer_address, reason=reason, count=self._strangers)
