"""A connection between controller and agent: a `Channel` on a socket, with heartbeat times."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

from echelon.launch.protocol.messages import Message, decode, encode
from echelon.launch.protocol.wire import Channel, Role, WireError

PULSE_S = 1.0
"""Interval of the heartbeats that each end sends."""
SILENCE_S = 5.0
"""How long a peer may be silent before it counts as lost."""
NEAR_SILENCE_S = 15.0
"""The same for a peer on our own machine. If it dies, the kernel closes the connection at once; if
it is silent, the machine is too busy to run it, and would be for whatever replaced it."""
HANDSHAKE_S = 10.0
_CONNECT_S = 0.5
"""Time limit of one attempt to connect. If the listener's queue is full, the first packet is
dropped, and repeated after a second: a new attempt is faster."""
_SLOW_CONNECT_S = 3.0
"""The same for every fourth attempt, for slow networks."""
_UNSENT = 8 << 20
"""Unsent bytes after which a peer that does not read counts as lost."""


class Link(asyncio.Protocol):
    """One end of a connection. It calls its owner's functions; `lost` once, at the end."""

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
        """Create one end.

        Args:
            key: the run's key.
            role: which end this is.
            opened: called once the peer has proved that it knows the key.
            received: called with each message.
            lost: called with the reason when the connection has ended.
            first: bytes that were received from the peer already.
        """
        self._channel = Channel(key, role)
        self._opened, self._received, self._lost = opened, received, lost
        self._first = first
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._reason = "the connection was closed"
        self._dropped = False
        self.heard_s = time.monotonic()
        """Time of the last message from the peer."""
        self.sent_s = 0.0
        """Time of the last message to the peer."""
        self.own_address = ""
        """Our address, as the peer reached it."""
        self.peer_address = ""

    # --- for the owner --------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """How long the peer may be silent before it counts as lost."""
        is_near = self.own_address != "" and self.own_address == self.peer_address
        return NEAR_SILENCE_S if is_near else SILENCE_S

    def say(self, message: Message) -> None:
        """Send a message; does nothing if the connection is closed."""
        if self._transport is None or not self._channel.open:
            return
        self.sent_s = time.monotonic()
        self._channel.send(encode(message))
        self._flush()

    def beat(self, heartbeat: Message, paused_s: float) -> None:
        """Send a heartbeat; drop a peer whose own have stopped.

        Args:
            heartbeat: what to send.
            paused_s: how long this process was suspended since the last one (`sleep_a_pulse`).
        """
        if paused_s > SILENCE_S / 2:
            self.heard_s = time.monotonic()  # we could not hear it
        self.say(heartbeat)
        if time.monotonic() - self.heard_s > self.silence_s:
            self.drop(f"no heartbeat for {self.silence_s:g} s")

    def drop(self, reason: str) -> None:
        """Close the connection at once."""
        self._reason, self._dropped = reason, True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection after sending what is pending."""
        if self._transport is not None:
            self._transport.close()

    # --- for asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._dropped:  # by its owner, before it was established
            transport.abort()
            return
        with contextlib.suppress(OSError, TypeError):  # the peer may have disconnected already
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
            self.drop("it does not read what is sent to it")


async def sleep_a_pulse() -> float:
    """Wait for one heartbeat interval; return how many seconds longer it took.

    A suspended process, or one on a suspended machine, has not read the messages it was sent.
    """
    began_s = time.monotonic()
    await asyncio.sleep(PULSE_S)
    return time.monotonic() - began_s - PULSE_S


async def connect(
    candidates: list[tuple[str, int]], make: Callable[[], Link], *, attempt: int = 3
) -> Link:
    """Connect to the first address that responds.

    Args:
        candidates: addresses and ports.
        make: creates our end.
        attempt: number of earlier attempts.

    Raises:
        OSError: no address responds.
    """
    loop = asyncio.get_running_loop()
    timeout_s = _SLOW_CONNECT_S if attempt % 4 == 3 else _CONNECT_S * random.uniform(0.6, 1.4)  # noqa: S311
    failure: OSError = ConnectionRefusedError("no address was given")
    for address, port in candidates:
        try:
            connecting: Any = loop.create_connection(make, address, port)
            _, link = await asyncio.wait_for(connecting, timeout_s)
        except OSError as error:  # includes time-outs
            failure = error
            continue
        assert isinstance(link, Link)
        return link
    raise failure
