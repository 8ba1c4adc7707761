"""Where a rank is, and where it is to stop: a few numbers in memory that rank and agent share.

The file is mapped by both, so neither needs a system call. Each number is eight aligned bytes, and
has one writer, so nobody ever sees half of one.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Any

_NUMBER = struct.Struct("=q")
_SIZE = 64
VARIABLE = "ECHELON_BEACON"


class _Field:
    """One of the numbers; -1 until somebody writes it."""

    def __init__(self, place: int) -> None:
        self._offset = place * _NUMBER.size

    def __get__(self, beacon: "Beacon", kind: Any = None) -> int:
        (value,) = _NUMBER.unpack_from(beacon.memory, self._offset)
        return int(value)

    def __set__(self, beacon: "Beacon", value: int) -> None:
        _NUMBER.pack_into(beacon.memory, self._offset, value)


class Beacon:
    """Made by the agent with `create`, opened by the rank with `open`."""

    step = _Field(0)
    """By the rank: steps that it has taken."""
    passed = _Field(1)
    """By the rank: how many places it has come by where it could stop; -1 if it never would."""
    waiting = _Field(2)
    """By the rank: the place where it waits for the word to stop."""
    proposed = _Field(3)
    """By the agent: the place where all ranks may have to stop."""
    committed = _Field(4)
    """By the agent: the place where they do, for all of them wait there."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    @classmethod
    def create(cls, path: Path) -> "Beacon":
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, _NUMBER.pack(-1) * (_SIZE // _NUMBER.size))
            return cls(mmap.mmap(handle, _SIZE))
        finally:
            os.close(handle)

    @classmethod
    def open(cls, path: Path) -> "Beacon":
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _SIZE))

    def close(self) -> None:
        self.memory.close()
