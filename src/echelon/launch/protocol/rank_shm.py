"""Numbers that rank and agent share in memory: progress, where to stop, and time spent.

Both map the file, so neither needs a system call. Each number has eight aligned bytes and a single
writer, so no reader ever sees a partial write.
"""

import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BYTES = 8
_SIZE = 160
VARIABLE = "ECHELON_BEACON"
STEP, PASSED, WAITING, PROPOSED, COMMITTED = range(5)
"""Places of the numbers that every version has. Training loops use `numbers` with them, because an
attribute takes three times as long."""


class _Field:
    """One of the numbers; -1 until it is written."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, shm: "RankShm", kind: Any = None) -> int:
        try:
            return shm.numbers[self._place]
        except IndexError:  # the other side is an older version without this number
            return -1

    def __set__(self, shm: "RankShm", value: int) -> None:
        try:  # noqa: SIM105  suppress() is slower
            shm.numbers[self._place] = value
        except IndexError:
            pass


class RankShm:
    """Created by the agent with `create`, opened by the rank with `open`."""

    step = _Field(STEP)
    """By the rank: number of completed steps."""
    passed = _Field(PASSED)
    """By the rank: number of places it has passed where it can stop; -1 if it never stops."""
    waiting = _Field(WAITING)
    """By the rank: the place where it waits for the decision to stop."""
    proposed = _Field(PROPOSED)
    """By the agent: the place where all ranks are to wait."""
    committed = _Field(COMMITTED)
    """By the agent: the place where they stop, because all of them wait there."""
    started_us = _Field(5)
    """By the agent: when the rank was ordered, by the host's monotonic clock."""
    met_us = _Field(6)
    """By the rank: time from its start to its process group; 0 while it waits for that."""
    began_us = _Field(7)
    """By the rank: time from its start to its training loop; 0 while it prepares that."""
    first = _Field(8)
    """By the rank: number of steps that earlier generations had completed."""
    data_us = _Field(9)
    """By the rank: time that the loop has waited for data."""
    stall_us = _Field(10)
    """By the rank: time that checkpoints have blocked the loop."""
    saved = _Field(11)
    """By the rank: step of the newest checkpoint whose part is saved; for rank 0, all of it."""
    save_us = _Field(12)
    """By the rank: how long that took from the call."""
    stop_interval_us = _Field(13)
    """By the rank: the longest time between two places where it can stop."""

    pid = _Field(14)
    """By the agent: the rank's pid; 0 once it has exited."""
    generation = _Field(15)
    """By the agent: the rank's generation."""
    comm_us = _Field(16)
    """By the rank: time that it has waited for other ranks."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.numbers = memoryview(memory)[: len(memory) // _BYTES * _BYTES].cast("q")

    @classmethod
    def create(cls, path: Path) -> "RankShm":
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, b"\xff" * _SIZE)  # -1 everywhere
            shm = cls(mmap.mmap(handle, _SIZE))
            shm.started_us = _now_us()
            return shm
        finally:
            os.close(handle)

    @classmethod
    def open(cls, path: Path) -> "RankShm":
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            return cls(mmap.mmap(file.fileno(), min(size, _SIZE)))

    def elapsed_us(self) -> int:
        """Return the time since the rank was ordered; never 0."""
        return max(1, _now_us() - self.started_us)

    def close(self) -> None:
        self.numbers.release()
        self._memory.close()


def find_rank_shm(environ: Mapping[str, str]) -> RankShm | None:
    """Return this rank's shared numbers; None if there are none."""
    path = environ.get(VARIABLE, "")
    try:
        return RankShm.open(Path(path)) if path else None
    except (OSError, ValueError):
        return None


def _now_us() -> int:
    return time.monotonic_ns() // 1000
