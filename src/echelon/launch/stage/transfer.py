"""How a copy gets onto a node: one node reads storage, and each passes on what it has so far.

Nodes form a tree. A node asks the one above it for the files that it lacks, writes them to its own
disk, and serves them from there while they are still growing. If the node above is lost, it asks
another one for the rest. All of this runs in threads: the agent's event loop continues meanwhile.

After the handshake (`wire.py`), the first byte of each frame says what it is:

    server → client   m  a part of the manifest; one without content ends it
    client → server   w  which files it wants, as JSON
    server → client   d  the files' contents in order, each followed by its digest
    server → client   .  nothing to send yet
    server → client   e  why there will be nothing more
"""

import hashlib
import hmac
import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from echelon.launch.protocol.wire import Channel, Role, WireError
from echelon.launch.stage.copying import Copy, StalledError
from echelon.launch.stage.manifest import MOST_MANIFEST, StageManifest, decode_manifest
from echelon.launch.stage.store import CHUNK

STALL_S = 60.0
"""Time without any data after which a node goes on without a copy."""
_BEAT_S = 2.0
"""How often a node that has nothing to send says so."""
_HANDSHAKE_S = 10.0
_CONNECT_S = 3.0
_DIGEST = 32

Source = tuple[str, int]
"""Address and port of a node's server."""


def stage_key(key: bytes) -> bytes:
    """Return the key of these connections, so that none passes for one of the controller's."""
    return hmac.digest(key, b"stage", "sha256")


def _sign(key: bytes, number: bytes, payload: bytes) -> bytes:
    """Sign a frame, faster than with HMAC."""
    signed = hashlib.blake2b(number, key=key, digest_size=32)
    signed.update(payload)
    return signed.digest()


class _Pipe:
    """One end of a connection, on a blocking socket."""

    def __init__(self, peer: socket.socket, key: bytes, role: Role) -> None:
        """Authenticate the peer.

        Raises:
            OSError, WireError: it is no node of this run.
        """
        self._socket, self._frames = peer, deque[bytes]()
        self._channel = Channel(key, role, parse=bytes, sign=_sign)
        deadline_s = time.monotonic() + _HANDSHAKE_S
        while not self._channel.open:
            peer.settimeout(max(0.001, deadline_s - time.monotonic()))
            self._flush()
            self._pump()
        self._flush()
        peer.settimeout(STALL_S)

    def send(self, kind: bytes, data: bytes | bytearray = b"") -> None:
        self._channel.send_payload(kind + data)
        self._flush()

    def receive(self) -> tuple[bytes, bytes]:
        """Return the kind and the content of the next frame."""
        while not self._frames:
            self._pump()
        frame = self._frames.popleft()
        return frame[:1], frame[1:]

    def _pump(self) -> None:
        if not (data := self._socket.recv(CHUNK)):
            raise ConnectionResetError("the connection was closed")
        self._frames.extend(self._channel.receive(data))

    def _flush(self) -> None:
        if data := self._channel.take_outgoing():
            self._socket.sendall(data)


def serve(peer: socket.socket, key: bytes, find: Callable[[float], Copy | None]) -> None:
    """Serve one node, until it has what it wants.

    Args:
        peer: its connection.
        key: the key of these connections.
        find: waits so many seconds for the copy of this node; raises if there will be none.

    Raises:
        OSError, WireError: it is lost, or was no node of this run.
    """
    pipe = _Pipe(peer, key, "controller")
    try:
        while (copy := find(_BEAT_S)) is None:
            pipe.send(b".")
        encoded = copy.stage.manifest.encoded
        for start in range(0, len(encoded), CHUNK):
            pipe.send(b"m", encoded[start : start + CHUNK])
        pipe.send(b"m")
        kind, data = pipe.receive()
        if kind != b"w":
            raise WireError("a node did not say which files it wants")
        wanted = json.loads(data)
        outflow = _Outflow(pipe)
        for position in decode_ranges(wanted["files"], len(copy.stage.manifest.entries)):
            _send_file(outflow, copy, position, int(wanted["begun"].get(str(position), 0)))
        outflow.flush()
        pipe.receive()  # until it hangs up
    except (StalledError, ValueError, KeyError, TypeError, AttributeError) as error:
        pipe.send(b"e", str(error).encode())


class _Outflow:
    """Puts small files into one frame."""

    def __init__(self, pipe: _Pipe) -> None:
        self._pipe, self._waiting = pipe, bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        while self._waiting:
            self._pipe.send(b"d", self._waiting[:CHUNK])
            del self._waiting[:CHUNK]

    def idle(self) -> None:
        self._pipe.send(b".")


def _send_file(outflow: _Outflow, copy: Copy, position: int, sent: int) -> None:
    handle = -1
    try:
        while True:
            there, digest = copy.wait(position, sent, 0.0)
            if there <= sent and not digest:
                outflow.flush()
                there, digest = copy.wait(position, sent, _BEAT_S)
                if there <= sent and not digest:
                    outflow.idle()
                    continue
            handle = handle if handle >= 0 else copy.stage.read(position)
            while sent < there:
                if not (data := os.pread(handle, min(CHUNK, there - sent), sent)):
                    raise StalledError("a file of the copy has become shorter")
                sent += len(data)
                outflow.write(data)
            if digest:
                outflow.write(bytes.fromhex(digest))
                return
    finally:
        if handle >= 0:
            os.close(handle)


def fetch(
    source: Source, key: bytes, open_copy: Callable[[StageManifest], Copy], beat: Callable[[], None]
) -> Copy:
    """Copy what is lacking from another node.

    Args:
        source: its server.
        key: the key of these connections.
        open_copy: returns this node's copy of a manifest.
        beat: called whenever the other node says something.

    Raises:
        OSError, WireError: it is lost, or has no copy: another node may have one.
        StalledError: this node cannot have a copy.
    """
    with socket.create_connection(source, timeout=_CONNECT_S) as peer:
        inflow = _Inflow(_Pipe(peer, key, "agent"), beat)
        try:
            copy = open_copy(decode_manifest(inflow.take_manifest()))
        except ValueError as error:
            raise WireError(f"the other node sent a damaged list: {error}") from error
        if lacking := copy.lacking:
            inflow.ask(lacking)
            for position in lacking:
                left = copy.stage.manifest.entries[position].size - copy.begin(position)
                while left:
                    data = inflow.take(left)
                    left -= len(data)
                    copy.add(position, data)
                digest = b""
                while len(digest) < _DIGEST:
                    digest += inflow.take(_DIGEST - len(digest))
                copy.finish(position, digest)
    return copy


class _Inflow:
    """What another node sends."""

    def __init__(self, pipe: _Pipe, beat: Callable[[], None]) -> None:
        self._pipe, self._beat = pipe, beat
        self._data, self._used = b"", 0

    def take_manifest(self) -> bytes:
        found = bytearray()
        while data := self._expect(b"m"):
            found += data
            if len(found) > MOST_MANIFEST:
                raise WireError("the other node sent an endless list")
        return bytes(found)

    def ask(self, lacking: Mapping[int, int]) -> None:
        """Ask for files, and for the rest of those that were begun."""
        begun = {position: size for position, size in lacking.items() if size}
        wanted = {"files": encode_ranges(lacking), "begun": begun}
        self._pipe.send(b"w", json.dumps(wanted).encode())

    def take(self, most: int) -> bytes:
        """Return the next bytes, at least one."""
        if self._used == len(self._data):
            self._data, self._used = self._expect(b"d"), 0
        taken = self._data[self._used : self._used + most]
        self._used += len(taken)
        return taken

    def _expect(self, wanted: bytes) -> bytes:
        while True:
            kind, data = self._pipe.receive()
            self._beat()
            if kind == wanted:
                return data
            if kind == b"e":
                raise ConnectionAbortedError(data.decode(errors="replace"))
            if kind != b".":
                raise WireError(f"the other node sent an unexpected frame: {kind!r}")


def encode_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return sorted numbers as ranges, each with its first and last number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def decode_ranges(ranges: Any, count: int) -> list[int]:
    """Return the numbers below `count` that `encode_ranges` has encoded.

    Raises:
        ValueError: another node sent something else.
    """
    try:
        found = [n for first, last in ranges for n in range(int(first), min(int(last) + 1, count))]
    except (TypeError, ValueError) as error:
        raise ValueError("not a list of ranges") from error
    if any(number < 0 for number in found) or len(found) > count:
        raise ValueError("ranges of what is not there")
    return found
