"""A connection between controller and agent: a `Channel` on a socket, and a sense of silence."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from echelon.launch.protocol.messages import Message, decode, encode
from echelon.launch.protocol.wire import Channel, Role, WireError

PULSE_S = 1.0
"""How often each end says that it lives."""
SILENCE_S = 5.0
"""How long one that says nothing is waited for."""
HANDSHAKE_S = 10.0
_CONNECT_S = 0.5
"""How long one attempt to connect may take. Where the listener's queue is full the kernel drops
the first packet and repeats it after a second: a new attempt is sooner."""
_SLOW_CONNECT_S = 3.0
"""The same for every fourth attempt: the network itself may be slow."""
_UNSENT = 8 << 20
"""Bytes that a peer may leave unread before it counts as lost."""


class Link(asyncio.Protocol):
    """One end. Its owner's functions are called as things happen; `lost` comes once, at the end."""

    def __init__(
        self,
        key: bytes,
        role: Role,
        *,
        opened: Callable[["Link"], None],
        received: Callable[["Link", Message], None],
        lost: Callable[["Link", str], None],
        first: bytes = b"",
    ) -> None:
        """Make one.

        Args:
            key: the run's.
            role: which end this is.
            opened: called once the peer has shown that it knows the key,
            received: with each of its messages,
            lost: and with the reason why the connection is gone.
            first: what the peer has said already.
        """
        self._channel = Channel(key, role)
        self._opened, self._received, self._lost = opened, received, lost
        self._first = first
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self._dropped = False
        self.heard_s = time.monotonic()
        """When the peer was last heard."""
        self.said_s = 0.0
        """When it was last told something."""
        self.own_address = ""
        """Our address, as the peer reached it."""
        self.peer_address = ""

    # --- for the owner --------------------------------------------------------------------------

    def say(self, message: Message) -> None:
        """Send a message; to one who is gone it is said in vain."""
        if self._transport is None or not self._channel.open:
            return
        self.said_s = time.monotonic()
        self._channel.send(encode(message))
        self._flush()

    def drop(self, reason: str) -> None:
        """Close the connection at once."""
        self._reason, self._dropped = reason, True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection once everything is sent."""
        if self._transport is not None:
            self._transport.close()

    # --- asyncio's ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._dropped:  # before it was made, even
            transport.abort()
            return
        with contextlib.suppress(OSError, TypeError):  # the peer may be gone already
            self.own_address = str(transport.get_extra_info("sockname")[0])
            self.peer_address = str(transport.get_extra_info("peername")[0])
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            HANDSHAKE_S, self.drop, f"no handshake within {HANDSHAKE_S:g} s"
        )
        self._flush()
        if self._first:
            self.data_received(self._first)

    def data_received(self, data: bytes) -> None:
        was_open = bool(self._channel.open)
        try:
            messages = [decode(record) for record in self._channel.receive(data)]
        except WireError as error:
            self.drop(str(error))
            return
        self._flush()
        if self._channel.open:
            self.heard_s = time.monotonic()
        if was_open != self._channel.open:
            if self._deadline is not None:
                self._deadline.cancel()
            self._opened(self)
        for message in messages:
            self._received(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._lost(self, f"{self._reason}: {exc}" if exc else self._reason)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not (data := self._channel.take_outgoing()):
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _UNSENT:
            self.drop("it does not read what it is sent")


async def sleep_a_pulse() -> float:
    """Wait until the next pulse is due; return how much longer it took, in seconds.

    A process may be stopped, or its whole machine, and then has not heard what it was told.
    """
    began_s = time.monotonic()
    await asyncio.sleep(PULSE_S)
    return time.monotonic() - began_s - PULSE_S


async def connect(
    candidates: list[tuple[str, int]], make: Callable[[], Link], *, attempt: int = 3
) -> Link:
    """Connect to the first of these that answers.

    Args:
        candidates: addresses and ports.
        make: makes our end.
        attempt: how often this was tried before.

    Raises:
        OSError: none does.
    """
    loop = asyncio.get_running_loop()
    timeout_s = _SLOW_CONNECT_S if attempt % 4 == 3 else _CONNECT_S * random.uniform(0.6, 1.4)  # noqa: S311
    failure: OSError = ConnectionRefusedError("no address was given")
    for address, port in candidates:
        try:
            connecting: Any = loop.create_connection(make, address, port)
            _, link = await asyncio.wait_for(connecting, timeout_s)
        except OSError as error:  # a time-out is one too
            failure = error
            continue
        assert isinstance(link, Link)
        return link
    raise failure
