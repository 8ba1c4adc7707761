"""The ranks' logs: written by the ranks alone, timed from outside, read merged.

A rank writes straight into its file, so nothing it printed is lost when it dies and nobody stands
between it and the disk. When a line was written, its agent notes down beside it: `rank-00003.times`
holds lines of `time size`, each saying how long the log was then.
"""

import heapq
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 1 << 20


class LogClock:
    """Notes down when logs have grown. The agent's."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}

    def add(self, log: Path) -> None:
        self._sizes[log] = 0

    def tick(self, now_s: float) -> None:
        """Look at all logs once."""
        for log in self._sizes:
            self._note(log, now_s)

    def finish(self, log: Path, now_s: float) -> None:
        """Look a last time: nobody writes to it any more."""
        if log in self._sizes:
            self._note(log, now_s)
            del self._sizes[log]

    def _note(self, log: Path, now_s: float) -> None:
        try:
            size = log.stat().st_size
            if size == self._sizes[log]:
                return
            with _times(log).open("a") as file:
                file.write(f"{now_s:.3f} {size}\n")
        except OSError:
            return  # not there yet; or a full disk, on which the order of lines matters little
        self._sizes[log] = size


def _times(log: Path) -> Path:
    return log.with_suffix(".times")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Line:
    """A line of a rank's log; they sort by when they were written."""

    time_s: float
    rank: int
    number: int
    """Counts the lines of one reader, so that a rank's own order is kept."""
    text: str = field(compare=False)


class RankLog:
    """Reads one log, piece by piece, by whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        match = re.search(r"rank-(\d+)\.log$", path.name)
        self.rank = int(match[1]) if match else -1
        self._offset = 0
        self._number = 0
        self._times: list[tuple[int, float]] = []
        self._times_offset = 0

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return what came since the last call.

        Args:
            over: whether nobody writes any more, so that an unfinished line is one too.
            now_s: the time of lines that nobody has timed yet.
        """
        self._read_times()
        with self.path.open("rb") as file:
            file.seek(self._offset)
            left = b""
            while chunk := file.read(_CHUNK):
                whole, end, left = (left + chunk).rpartition(b"\n")
                yield from self._lines(whole + end, now_s)
                if len(left) > _CHUNK:  # a rank that never ends its line
                    yield from self._lines(left, now_s)
                    left = b""
            if over and left:
                yield from self._lines(left, now_s)

    def _lines(self, content: bytes, now_s: float) -> Iterator[Line]:
        for raw in content.split(b"\n")[: -1 if content.endswith(b"\n") else None]:
            self._offset += len(raw) + 1
            self._number += 1
            text = raw.decode(errors="replace").rstrip("\r")
            yield Line(time_s=self._time(now_s), rank=self.rank, number=self._number, text=text)
        if not content.endswith(b"\n"):
            self._offset -= 1

    def _time(self, now_s: float) -> float:
        """Return when the log had first grown past what was read."""
        while self._times and self._times[0][0] < self._offset:
            self._times.pop(0)
        return self._times[0][1] if self._times else now_s

    def _read_times(self) -> None:
        try:
            with _times(self.path).open("rb") as file:
                file.seek(self._times_offset)
                added = file.read()
        except OSError:
            return
        whole = added[: added.rfind(b"\n") + 1]
        self._times_offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            time_s, _, size = line.partition(" ")
            try:
                self._times.append((int(size), float(time_s)))
            except ValueError:
                continue


class RunLogs:
    """Reads all ranks' logs of a run, merged by time, and follows new ones."""

    def __init__(self, logs: Path, *, rank: int | None = None) -> None:
        self._folder = logs
        self._rank = rank
        self._open: dict[Path, RankLog] = {}

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return what came since the last call, a generation after the other."""
        for folder in sorted(self._folder.glob("*.*/"), key=_generation):
            readers = []
            for path in sorted(folder.glob("rank-*.log")):
                reader = self._open.setdefault(path, RankLog(path))
                if self._rank is None or reader.rank == self._rank:
                    readers.append(reader.read(over=over, now_s=now_s))
            yield from heapq.merge(*readers)


def _generation(folder: Path) -> tuple[int, int]:
    attempt, _, generation = folder.name.partition(".")
    try:
        return int(attempt), int(generation)
    except ValueError:
        return 0, 0
