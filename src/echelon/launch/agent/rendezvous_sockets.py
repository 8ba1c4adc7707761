"""An agent's part in the rendezvous: sockets that it holds open, and those that it tries to reach.

A socket is bound before its port is announced, and stays bound until a store is served on it. No
other process can take the port in between.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence

_REACH_S = 2.0
"""How long a probe waits for an answer."""


class RendezvousSockets:
    """Listening sockets of one node, candidates for the ranks' rendezvous."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def open(self, addresses: Sequence[str]) -> dict[str, int]:
        """Bind a socket on each address that belongs to this host; return the ports."""
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
        return {address: one.getsockname()[1] for address, one in self._held.items()}

    def take(self, address: str) -> socket.socket | None:
        """Return the socket that was chosen, and close the others; None if it is not ours."""
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
        with contextlib.suppress(OSError):  # includes time-outs
            attempt = asyncio.open_connection(address, port)
            _, writer = await asyncio.wait_for(attempt, timeout=_REACH_S)
            writer.close()
            return address
        return ""

    found = await asyncio.gather(*(reach(*target) for target in ports.items()))
    return [address for address in found if address]
