"""An agent's part in finding where ranks meet: sockets that it holds, and those that it tries.

A socket is bound before anybody is told of it and stays bound until a store is served on it: there
is no moment at which somebody else could take the port.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence

_REACH_S = 2.0
"""How long a probe waits for an answer."""


class RendezvousSockets:
    """The sockets of one node where its ranks' meeting may be."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def open(self, addresses: Sequence[str]) -> dict[str, int]:
        """Bind one on each of these addresses that is ours, and return their ports."""
        self.close()
        for address in addresses:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                listener.bind((address, 0))
                listener.listen(4096)
            except OSError:
                listener.close()
                continue
            self._held[address] = listener
        return {address: door.getsockname()[1] for address, door in self._held.items()}

    def take(self, address: str) -> socket.socket | None:
        """Return the one that was chosen, and close the others; None when it is another node's."""
        chosen = self._held.pop(address, None)
        self.close()
        return chosen

    def close(self) -> None:
        for listener in self._held.values():
            listener.close()
        self._held.clear()


async def try_sockets(ports: Mapping[str, int]) -> list[str]:
    """Return which of these addresses can be reached from here."""

    async def reach(address: str, port: int) -> str:
        with contextlib.suppress(OSError):  # a time-out is one too
            attempt = asyncio.open_connection(address, port)
            _, writer = await asyncio.wait_for(attempt, timeout=_REACH_S)
            writer.close()
            return address
        return ""

    found = await asyncio.gather(*(reach(*target) for target in ports.items()))
    return [address for address in found if address]
