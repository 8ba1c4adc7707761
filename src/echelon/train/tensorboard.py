"""Write scalars to TensorBoard event files, without the tensorboard package.

The package takes a second to import, which would add a second to every restart. A record is its
length, the length's checksum, a protobuf message `Event`, and the message's checksum.
"""

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1, 2, 3, 5
_VALUE, _TAG, _SIMPLE = 1, 1, 2
"""Protobuf field numbers of Event, Summary and its values."""


class ScalarWriter:
    """Appends scalars to a new event file in a folder."""

    def __init__(self, folder: Path, *, now_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # TensorBoard reads a folder's files in the order of their names.
        name = f"events.out.tfevents.{int(now_s):010}.{os.uname().nodename}.{os.getpid()}"
        self._file = (folder / name).open("ab", buffering=0)
        self._file.write(frame(_double(_WALL_TIME, now_s) + _bytes(_VERSION, b"brain.Event:2")))

    def write(self, points: Iterable[tuple[float, int, Mapping[str, float]]]) -> None:
        """Append scalars of several steps, each with its time and step, in one `write`."""
        self._file.write(b"".join(frame(_event(*point)) for point in points))

    def close(self) -> None:
        self._file.close()


def _event(time_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    values = b"".join(
        _bytes(_VALUE, _bytes(_TAG, tag.encode()) + _float(_SIMPLE, value))
        for tag, value in scalars.items()
    )
    event = _double(_WALL_TIME, time_s) + _varint(_STEP << 3) + _varint(step)
    return event + _bytes(_SUMMARY, values)


def frame(message: bytes) -> bytes:
    """Return a message as a record."""
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


# --- protobuf ---------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


# --- checksums --------------------------------------------------------------------------------


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()
"""Lookup table of CRC-32C (Castagnoli), which the standard library does not have."""


def _masked_crc(data: bytes) -> bytes:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
