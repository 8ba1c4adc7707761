"""The ranks' logs: written by the ranks alone, timed from outside, read merged.

A rank writes straight into its file, so nothing it printed is lost when it dies and nobody stands
between it and the disk. When a line was written, its agent notes down beside it: `rank-00003.times`
holds lines of `time size`, each saying how long the log was then.
"""

import contextlib
import errno
import heapq
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from echelon.core.records import UnreadableError, open_regular

_CHUNK = 1 << 15
_LONGEST = 1 << 20
"""Where a line is cut that does not end."""


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


class Tail:
    """Reads a growing file by whole lines, and no more of it at a time than it must."""

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path = path
        self.offset = start
        """Up to where lines have been taken."""

    def read(self, *, over: bool) -> Iterator[tuple[int, str]]:
        """Return the lines that have come since the last call, each with where it ends.

        Args:
            over: whether nobody writes any more, so that an unfinished line is one too.
        """
        # What comes while we read is for the next call: a busy writer must not keep us here.
        size = self._path.stat().st_size
        start, left = self.offset, b""
        if size <= start:
            return  # a thousand logs are not opened to find nothing in them
        while start < size:
            found, chunk = self._piece(start, size)
            if not chunk:
                break
            if found > start:  # past a hole, which a crash may leave: nobody has written that
                if left:
                    yield from self._take(left, 0)
                left, self.offset = b"", found
            start = found + len(chunk)
            *whole, left = (left + chunk).split(b"\n")
            for line in whole:
                yield from self._take(line, 1)
            while len(left) >= _LONGEST:  # a writer that never ends its line
                yield from self._take(left[:_LONGEST], 0)
                left = left[_LONGEST:]
        if over and left:
            yield from self._take(left, 0)

    def _piece(self, start: int, end: int) -> tuple[int, bytes]:
        """Return the next bytes before an end that were written, and where they are."""
        # Opened every time: the logs of all ranks are read at once, and a process may not have
        # a thousand files open.
        with open_regular(self._path) as file:
            try:
                at = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # there is no more of it
                    raise
                return start, b""
            return at, os.pread(file.fileno(), max(0, min(_CHUNK, end - at)), at)

    def _take(self, line: bytes, newline: int) -> Iterator[tuple[int, str]]:
        end = self.offset + len(line) + newline
        yield end, line.decode(errors="replace").rstrip("\r")
        # Only now: whoever was interrupted over a line gets it again.
        self.offset = end


class _Times:
    """Reads what a LogClock has noted down."""

    def __init__(self, log: Path, *, recent: int | None) -> None:
        self._path, self._recent = _times(log), recent
        self._notes: Tail | None = None
        self._size, self._time_s = 0, 0.0

    def read(self) -> Iterator[tuple[int, float]]:
        """Return the sizes that the log has had, and when: the last known one first."""
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
    """Return where the first line begins that is in the last so many bytes of a file."""
    if recent is None:
        return 0
    try:
        start = path.stat().st_size - recent
        if start <= 0:
            return 0
        with open_regular(path) as file:
            file.seek(start - 1)  # a line may begin just there
            return start - 1 + len(file.readline(_LONGEST))
    except OSError:
        return 0


class RankLog:
    """Reads one rank's log, with the times of its lines."""

    def __init__(self, path: Path, *, recent: int | None = None) -> None:
        """Read a log; of what is there already, so many bytes, or all of it when None."""
        self.rank = parse_rank(path)
        self._tail = Tail(path, start=line_start(path, recent))
        self._times = _Times(path, recent=recent)
        self._number = 0

    @property
    def offset(self) -> int:
        """Up to where it has been read."""
        return self._tail.offset

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return what came since the last call.

        Args:
            over: as for `Tail`.
            now_s: the time of lines that nobody has timed yet.
        """
        times = self._times.read()
        size, time_s = next(times)
        for end, text in self._tail.read(over=over):
            while size < end:  # until when the log had first grown past this line
                size, time_s = next(times, (sys.maxsize, now_s))
            self._number += 1
            yield Line(time_s=time_s, rank=self.rank, number=self._number, text=text)


class RunLogs:
    """Reads all ranks' logs of a run, merged by time, and follows new ones."""

    def __init__(self, logs: Path, *, rank: int | None = None, recent: int | None = None) -> None:
        """Follow the logs of a folder.

        Args:
            logs: where the generations' folders are.
            rank: whose alone; None for all.
            recent: how many bytes are read of each log that is there; None for all.
        """
        self._folder, self._recent = logs, recent
        self._rank = rank
        self._open: dict[Path, RankLog] = {}
        self._done: set[Path] = set()
        """Generations that were read to their end."""

    def read(self, *, over: bool, now_s: float) -> Iterator[Line]:
        """Return what came since the last call, a generation after the other."""
        folders = sorted(self._folder.glob("*.*/"), key=parse_generation)
        for folder in folders:
            if folder in self._done:
                continue
            readers = []
            # Ranks are started anew only when all earlier ones are gone.
            ended = over or folder is not folders[-1]
            for name, size in _sizes(folder):
                path = folder / name
                reader = self._open.get(path)
                if reader is None:
                    reader = self._open[path] = RankLog(path, recent=self._recent)
                # Of a thousand, few have anything new to say.
                if size > reader.offset and self._rank in (None, reader.rank):
                    readers.append(reader.read(over=ended, now_s=now_s))
            yield from heapq.merge(*readers)
            if folder is not folders[-1]:
                self._done.add(folder)
                self._open = {p: log for p, log in self._open.items() if p.parent != folder}
        self._recent = None  # what comes from now on is read wholly

    def ends(self) -> dict[Path, int]:
        """Return up to where the logs are read that may still grow."""
        return {path: log.offset for path, log in self._open.items()}


def _sizes(folder: Path) -> list[tuple[str, int]]:
    """Return the logs in a folder, by their names, and how long they are."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (entry.name, entry.stat().st_size)
                for entry in entries
                if entry.name.startswith("rank-") and entry.name.endswith(".log")
                if entry.is_file()
            )
    except OSError:
        return []  # it was taken away meanwhile


def parse_rank(log: Path) -> int:
    """Return whose log it is, by its name; -1 where that is none of ours."""
    match = re.search(r"rank-(\d+)\.log$", log.name)
    return int(match[1]) if match else -1


def parse_generation(folder: Path) -> tuple[int, int]:
    """Return of which attempt and generation the logs in a folder are, by its name."""
    attempt, _, generation = folder.name.partition(".")
    try:
        return int(attempt), int(generation)
    except ValueError:
        return 0, 0
