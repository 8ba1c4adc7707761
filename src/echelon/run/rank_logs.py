"""The ranks' logs: written by the ranks, timed by their agent, read merged.

A rank writes directly to its file, so nothing that it printed is lost when it dies. Its agent
records when lines were written: `rank-00003.times` has lines of `time size`, the size of the log
at that time.
"""

import contextlib
import errno
import heapq
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from echelon.core.records import UnreadableError, open_regular

_CHUNK = 1 << 15
_LONGEST = 1 << 20
"""A longer line is split."""
_UNFINISHED = 2048
"""How much of a line that has not ended is looked at: some states of a progress bar."""


class LogClock:
    """Records when logs grow, for the agent."""

    def __init__(self) -> None:
        self._sizes: dict[Path, int] = {}

    def add(self, log: Path) -> None:
        self._sizes[log] = 0

    def tick(self, now_s: float) -> None:
        """Check all logs once."""
        for log in self._sizes:
            self._note(log, now_s)

    def finish(self, log: Path, now_s: float) -> None:
        """Check a log for the last time: nothing writes to it any more."""
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
            return  # it does not exist yet, or the disk is full
        self._sizes[log] = size


def _times(log: Path) -> Path:
    return log.with_suffix(".times")


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Line:
    """A line of a rank's log; lines sort by the time they were written."""

    time_s: float
    rank: int
    number: int
    """Number of the line within one reader, which keeps each rank's own order."""
    text: str = field(compare=False)


class Tail:
    """Reads a growing file by whole lines, in small chunks."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self.offset = start
        """End of the last line that was returned."""

    def read(self, *, over: bool) -> Iterator[tuple[int, str]]:
        """Return the lines added since the last call, each with the offset of its end.

        Args:
            over: the file is complete, so a last line without a newline counts too.
        """
        # Leave what is added meanwhile to the next call: a busy writer must not keep us here.
        size = self._path.stat().st_size
        start, left = self.offset, b""
        if size <= start:
            return  # do not open a thousand logs for nothing
        while start < size:
            found, chunk = self._piece(start, size)
            if not chunk:
                break
            if found > start:  # a crash may leave a hole, which holds no data
                if left:
                    yield from self._take(left, 0)
                left, self.offset = b"", found
            start = found + len(chunk)
            *whole, left = (left + chunk).split(b"\n")
            for line in whole:
                yield from self._take(line, 1)
            while len(left) >= _LONGEST:  # a line without an end
                yield from self._take(left[:_LONGEST], 0)
                left = left[_LONGEST:]
        if over and left:
            yield from self._take(left, 0)

    def unfinished(self) -> str:
        """Return the end of what was written after the last line."""
        with contextlib.suppress(OSError, UnreadableError), open_regular(self._path) as file:
            end = os.fstat(file.fileno()).st_size
            start = max(self.offset, end - _UNFINISHED)
            return os.pread(file.fileno(), max(0, end - start), start).decode(errors="replace")
        return ""

    def _piece(self, start: int, end: int) -> tuple[int, bytes]:
        """Return the next written bytes before `end`, and their offset."""
        # Opened every time: the logs of all ranks are read at once, and a process may not be
        # allowed a thousand open files.
        with open_regular(self._path) as file:
            try:
                at = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # no more data
                    raise
                return start, b""
            return at, os.pread(file.fileno(), max(0, min(_CHUNK, end - at)), at)

    def _take(self, line: bytes, newline: int) -> Iterator[tuple[int, str]]:
        end = self.offset + len(line) + newline
        yield end, line.decode(errors="replace").rstrip("\r")
        # Only now: a caller that was interrupted gets the line again.
        self.offset = end


class LogTimes:
    """Reads what a LogClock has recorded."""

    def __init__(self, log: Path, *, recent: int | None) -> None:
        self._path, self._recent = _times(log), recent
        self._notes: Tail | None = None
        self._size, self._time_s = 0, 0.0

    def read(self) -> Iterator[tuple[int, float]]:
        """Return sizes of the log and their times, the last known one first."""
        yield self._size, self._time_s
        if self._notes is None:
            self._notes = Tail(self._path, start=line_start(self._path, self._recent))
        with contextlib.suppress(FileNotFoundError, UnreadableError):
            for _, note in self._notes.read(over=False):
                time_s, _, size = note.partition(" ")
                with contextlib.suppress(ValueError):
                    self._size, self._time_s = int(size), float(time_s)
                    yield self._size, self._time_s


def line_start(path: Path, recent: int | None) -> int:
    """Return where the first line within the last `recent` bytes of a file begins."""
    if recent is None:
        return 0
    try:
        start = path.stat().st_size - recent
        if start <= 0:
            return 0
        with open_regular(path) as file:
            file.seek(start - 1)  # a line may begin exactly at `start`
            return start - 1 + len(file.readline(_LONGEST))
    except OSError:
        return 0


def last_lines_start(path: Path, count: int) -> int:
    """Return where the last `count` lines of a file begin, without reading what is before them."""
    try:
        with open_regular(path) as file:
            at = os.fstat(file.fileno()).st_size
            # A newline at the very end ends the last line, and begins none.
            count += at > 0 and os.pread(file.fileno(), 1, at - 1) == b"\n"
            if not count:
                return at
            while at > 0:
                begin = max(0, at - _CHUNK)
                chunk = os.pread(file.fileno(), at - begin, begin)
                if (found := chunk.count(b"\n")) >= count:
                    for _ in range(count):
                        at = begin + chunk.rindex(b"\n", 0, at - begin)
                    return at + 1
                count, at = count - found, begin
    except OSError:
        pass
    return 0


class RankLog:
    """Reads one rank's log, with the times of its lines."""

    def __init__(self, path: Path, *, recent: int | None = None, start: int | None = None) -> None:
        """Read a log, or a part of its present content.

        Args:
            path: the log.
            recent: only this many bytes, from the end,
            start: or only from this offset on.
        """
        self.rank = parse_rank(path)
        self._tail = Tail(path, start=line_start(path, recent) if start is None else start)
        self._times = LogTimes(path, recent=recent)
        self._number = 0

    @property
    def offset(self) -> int:
        """End of what has been read."""
        return self._tail.offset

    def unfinished(self) -> str:
        """Return the end of what was written after the last line: perhaps a progress bar."""
        return self._tail.unfinished()

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return the lines added since the last call.

        Args:
            over: as for `Tail`.
            now_s: the time for lines without a recorded one.
        """
        times = self._times.read()
        size, time_s = next(times)
        for end, text in self._tail.read(over=over):
            while size < end:  # find when the log first included this line
                size, time_s = next(times, (sys.maxsize, now_s))
            self._number += 1
            yield Line(time_s=time_s, rank=self.rank, number=self._number, text=text)


class RunLogs:
    """Reads all ranks' logs of a run, merged by time, and follows new ones."""

    def __init__(
        self, logs: Path, *, ranks: frozenset[int] = frozenset(), recent: int | None = None
    ) -> None:
        """Follow the logs in a folder.

        Args:
            logs: contains a folder for each generation.
            ranks: the ranks to read; empty for all.
            recent: how many bytes to read of each existing log; None for all.
        """
        self._folder, self._recent = logs, recent
        self._ranks = ranks
        self._open: dict[Path, RankLog] = {}
        self._done: set[Path] = set()
        """Generations that were read to the end."""

    def _wants(self, rank: int) -> bool:
        return not self._ranks or rank in self._ranks

    def skip(self, count: int) -> None:
        """Skip what is there already, except for the last `count` lines of the logs they are in."""
        found = 0
        for folder in sorted(self._folder.glob("*.*/"), key=parse_generation, reverse=True):
            if found >= count:
                self._done.add(folder)
                continue
            for name, _ in _sizes(folder):
                path = folder / name
                if self._wants(parse_rank(path)):
                    start = last_lines_start(path, count)
                    self._open[path] = RankLog(path, start=start)
                    found += sum(1 for _ in Tail(path, start=start).read(over=True))

    def position(self) -> dict[str, int]:
        """Return how far the logs have been read, for `continue_from`; -1 is a whole generation."""
        ends = {str(path.relative_to(self._folder)): end for path, end in self.ends().items()}
        return {**dict.fromkeys((folder.name for folder in self._done), -1), **ends}

    def continue_from(self, position: Mapping[str, int]) -> None:
        """Read on where another reader was."""
        for name, end in position.items():
            path = self._folder / name
            if end < 0:
                self._done.add(path)
            else:
                self._open[path] = RankLog(path, start=end)

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return the lines added since the last call, one generation after the other."""
        folders = sorted(self._folder.glob("*.*/"), key=parse_generation)
        for folder in folders:
            if folder in self._done:
                continue
            readers = []
            # A generation starts only when all earlier ranks have exited.
            ended = over or folder is not folders[-1]
            for name, size in _sizes(folder):
                path = folder / name
                reader = self._open.get(path)
                if reader is None:
                    reader = self._open[path] = RankLog(path, recent=self._recent)
                # Of a thousand logs, few have grown.
                if size > reader.offset and self._wants(reader.rank):
                    readers.append(reader.read(over=ended, now_s=now_s))
            yield from heapq.merge(*readers)
            if folder is not folders[-1]:
                self._done.add(folder)
                self._open = {p: log for p, log in self._open.items() if p.parent != folder}
        self._recent = None  # logs that appear later are read in full

    def find_bar(self) -> tuple[int, str] | None:
        """Return the progress bar that the first of all ranks is drawing, and its rank."""
        wanted = (log for log in self._open.values() if self._wants(log.rank))
        for log in sorted(wanted, key=lambda log: log.rank):
            if "\r" in (text := log.unfinished()):
                return log.rank, text
        return None

    def ends(self) -> dict[Path, int]:
        """Return how far the logs that may still grow have been read."""
        return {path: log.offset for path, log in self._open.items()}


def _sizes(folder: Path) -> list[tuple[str, int]]:
    """Return the names and sizes of the logs in a folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.stat().st_size)
                for entry in entries
                if entry.name.startswith("rank-") and entry.name.endswith(".log")
                if entry.is_file()
            )
    except OSError:
        return []  # it was removed meanwhile


def parse_rank(log: Path) -> int:
    """Return the rank in a log's file name; -1 if it is not such a name."""
    match = re.search(r"rank-(\d+)\.log$", log.name)
    return int(match[1]) if match else -1


def parse_generation(folder: Path) -> tuple[int, int]:
    """Return the attempt and generation in a folder's name."""
    attempt, _, generation = folder.name.partition(".")
    try:
        return int(attempt), int(generation)
    except ValueError:
        return 0, 0
