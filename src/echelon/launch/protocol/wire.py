"""Authenticated frames between controller and agents. Bytes in, messages out: no sockets here.

A peer is a stranger until it has answered a challenge that requires the run's key:

    agent → controller   greeting, nonce, HMAC(key, "knock", its nonce)
    controller → agent   greeting, nonce
    agent → controller   HMAC(key, "agent", both nonces)
    controller → agent   HMAC(key, "controller", both nonces)
    either way           length, HMAC(session key, direction, counter, payload), payload

The knock alone proves nothing, because it can be replayed. But a connection that sends one is
almost certainly an agent's, and is preferred to others when connections are limited
(`agent_server.py`).

The counter gives a replayed, dropped or reordered frame a wrong HMAC; the nonces make frames of one
session invalid in another. Payloads are JSON objects; nothing is ever unpickled. No input raises
anything but a `WireError`, after which the channel is closed, or makes us keep more than what is
expected next: 79 bytes from a stranger, one frame from a peer.
"""

import hmac
import json
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal

from echelon.errors import EchelonError

_NAME = b"echelon wire "
GREETING = _NAME + b"2\n"
"""Names the protocol and its version."""
MAX_PAYLOAD = 1 << 20
_NONCE = 32
_MAC = 32
KNOCK = len(GREETING) + _NONCE + _MAC
"""Length of an agent's first message."""
_HEAD = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_to_json = json.JSONEncoder(separators=(",", ":")).encode

Role = Literal["controller", "agent"]


class WireError(EchelonError):
    """Received bytes are not from a peer of this run, or are malformed."""


class Channel:
    """One end of a connection: pass it what arrives, then send what `take_outgoing` returns."""

    def __init__(
        self,
        key: bytes,
        role: Role,
        *,
        parse: Callable[[bytes], Any] | None = None,
        sign: Callable[[bytes, bytes, bytes], bytes] | None = None,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Create one end.

        Args:
            key: what both ends know.
            role: which end this is.
            parse: reads a payload; by default it is a JSON object.
            sign: returns 32 bytes for a key, a frame's number and its payload; by default an HMAC.
            random: returns so many bytes, for tests.
        """
        self._key, self._parse, self._sign_frame = key, parse or _parse, sign or _sign_frame
        self._role: Role = role
        self._peer: Role = "agent" if role == "controller" else "controller"
        self._nonce = random(_NONCE)
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._session = b""
        self._sent = 0
        self._received = 0
        self._expect: Callable[[], bool] = self._expect_greeting
        self.open = False
        """Whether the peer has proved that it knows the key."""
        self._own_proof = self._peer_proof = b""
        knock = _sign_knock(key, self._nonce) if role == "agent" else b""
        self._outgoing += GREETING + self._nonce + knock

    def receive(self, data: bytes) -> list[Any]:
        """Return the messages that are complete with these bytes.

        Raises:
            WireError: the connection must be dropped.
        """
        self._incoming += data
        self._messages: list[Any] = []
        try:
            while self._expect():
                pass
        except WireError:
            # A frame after a forged one could have a valid HMAC: it must not be accepted.
            self._expect = self._expect_nothing
            self._incoming.clear()
            raise
        return self._messages

    def send(self, message: Mapping[str, Any]) -> None:
        """Add a message to the outgoing bytes."""
        self.send_payload(_to_json(message).encode())

    def send_payload(self, payload: bytes) -> None:
        """Add a message that is encoded already."""
        assert self.open, "messages are sent only to authenticated peers"
        if len(payload) > MAX_PAYLOAD:
            raise WireError(f"a message of {len(payload)} bytes is too long to send")
        mac = self._mac(self._role, self._sent, payload)
        self._sent += 1
        self._outgoing += _HEAD.pack(len(payload)) + mac + payload

    def take_outgoing(self) -> bytes:
        """Return the bytes to send, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # --- one method per expected item; each returns whether it was complete ---------------------

    def _expect_greeting(self) -> bool:
        if self._role == "controller":
            whole, size = has_knocked(self._key, self._incoming), KNOCK
        else:
            _check_greeting(self._incoming)
            size = len(GREETING) + _NONCE
            whole = len(self._incoming) >= size
        if not whole:
            return False
        nonce = self._take(size)[len(GREETING) :][:_NONCE]
        if hmac.compare_digest(nonce, self._nonce):
            raise WireError("the peer returned our own nonce")
        pair = self._nonce + nonce if self._role == "controller" else nonce + self._nonce
        self._session = self._sign(b"session" + pair)
        self._own_proof = self._sign(self._role.encode() + pair)
        self._peer_proof = self._sign(self._peer.encode() + pair)
        if self._role == "agent":
            self._outgoing += self._own_proof
        self._expect = self._expect_proof
        return True

    def _expect_proof(self) -> bool:
        if len(self._incoming) < _MAC:
            return False
        if not hmac.compare_digest(self._take(_MAC), self._peer_proof):
            who = "the peer" if self._role == "controller" else "the controller"
            raise WireError(f"{who} does not know the run's key")
        if self._role == "controller":  # only now: a stranger gets no proof to analyse
            self._outgoing += self._own_proof
        self.open = True
        self._expect = self._expect_frame
        return True

    def _expect_frame(self) -> bool:
        if len(self._incoming) < _HEAD.size:
            return False
        (size,) = _HEAD.unpack_from(self._incoming)
        if size > MAX_PAYLOAD:
            raise WireError(f"a frame of {size} bytes is too long")
        if len(self._incoming) < _HEAD.size + _MAC + size:
            return False
        frame = self._take(_HEAD.size + _MAC + size)[_HEAD.size :]
        mac, payload = frame[:_MAC], frame[_MAC:]
        if not hmac.compare_digest(mac, self._mac(self._peer, self._received, payload)):
            raise WireError("a frame was altered, repeated or dropped")
        self._received += 1
        self._messages.append(self._parse(payload))
        return True

    def _expect_nothing(self) -> bool:
        raise WireError("the channel is closed after an error")

    # --- keys -----------------------------------------------------------------------------------

    def _take(self, size: int) -> bytes:
        taken = bytes(self._incoming[:size])
        del self._incoming[:size]
        return taken

    def _sign(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, "sha256")

    def _mac(self, sender: Role, counter: int, payload: bytes) -> bytes:
        return self._sign_frame(self._session, sender.encode() + _COUNTER.pack(counter), payload)


def has_knocked(key: bytes, received: bytes | bytearray) -> bool:
    """Tell whether an agent's first message is complete.

    Args:
        key: the run's key.
        received: what the peer has sent so far.

    Raises:
        WireError: the peer is not an agent of this run.
    """
    _check_greeting(received)
    received = bytes(received[:KNOCK])
    if len(received) < KNOCK:
        return False
    nonce, knock = received[len(GREETING) : -_MAC], received[-_MAC:]
    if not hmac.compare_digest(knock, _sign_knock(key, nonce)):
        raise WireError("the peer does not know the run's key")
    return True


def _sign_frame(key: bytes, number: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, number + payload, "sha256")


def _sign_knock(key: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, b"knock" + nonce, "sha256")


def _check_greeting(received: bytes | bytearray) -> None:
    start = bytes(received[: len(GREETING)])
    if GREETING.startswith(start):
        return
    if start.startswith(_NAME):
        theirs, ours = (text.decode(errors="replace") for text in (start, GREETING))
        raise WireError(f"the peer uses protocol version {theirs!r}, expected {ours!r}")
    raise WireError("the peer does not use our protocol")


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        # Decode here: json would also accept UTF-16 and UTF-32.
        message = json.loads(payload.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame is not valid JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise WireError(f"a frame contains a {type(message).__name__}, not an object")
    return message
