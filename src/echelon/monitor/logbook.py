"""The ranks' output for the page: recent lines are kept in memory, older ones searched in files.

Both are bounded, because a thousand ranks may have printed for weeks.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.records import open_regular
from echelon.run.rank_logs import LogTimes, RunLogs, line_start, parse_generation, parse_rank

HELD = 5000
"""Number of recent lines that are kept."""
SHOWN = 2000
"""Number of lines that are sent at once."""
LONGEST = 2000
"""Length at which a line is cut."""
BUDGET = 64 << 20
"""Bytes that a search reads, the newest of each rank."""
_RECENT = 8 << 20
"""Bytes that are read at first, of all logs together."""
_LEAST = 1 << 12


@frozen
class Wanted:
    """A filter for lines."""

    rank: int | None = None
    text: str = ""

    def matches(self, rank: int, text: str) -> bool:
        return (self.rank is None or rank == self.rank) and self.text.lower() in text.lower()


class LogBook:
    """Follows the logs of a run; lines are numbered, so that none is sent twice."""

    def __init__(self, logs: Path) -> None:
        self._folder = logs
        self._logs: RunLogs | None = None
        self._lines: deque[tuple[int, str]] = deque(maxlen=HELD)
        self._count = 0

    def read(self, now_s: float) -> None:
        """Read new lines."""
        if self._logs is None:
            count = sum(1 for _ in self._folder.glob("*.*/rank-*.log"))
            self._logs = RunLogs(self._folder, recent=max(_LEAST, _RECENT // max(1, count)))
        for line in self._logs.read(over=False, now_s=now_s):
            self._count += 1
            self._lines.append((line.rank, line.text[:LONGEST]))

    def show(self, wanted: Wanted) -> dict[str, Any]:
        """Return the newest matching lines, and the number of the next line."""
        if wanted == Wanted():
            found, whole = list(self._lines), self._count <= HELD
        else:
            ends = self._logs.ends() if self._logs else {}
            found, whole = search(self._folder, ends, wanted, budget=BUDGET)
        lines = [[rank, text] for rank, text in found[-SHOWN:]]
        return {"lines": lines, "next": self._count, "whole": whole and len(found) <= SHOWN}

    def follow(self, after: int, wanted: Wanted) -> dict[str, Any]:
        """Return the matching lines after a line number."""
        new = min(len(self._lines), max(0, self._count - after))
        found = [
            [rank, text]
            for rank, text in list(self._lines)[len(self._lines) - new :]
            if wanted.matches(rank, text)
        ]
        whole = self._count - after <= len(self._lines) and len(found) <= SHOWN
        return {"lines": found[-SHOWN:], "next": self._count, "whole": whole}


# --- in files -----------------------------------------------------------------------------------


def search(
    logs: Path, ends: Mapping[Path, int], wanted: Wanted, *, budget: int
) -> tuple[list[tuple[int, str]], bool]:
    """Return the matching lines, the newest last, and whether all logs were searched.

    Args:
        logs: directory of the generations' directories.
        ends: position at which to stop, for logs that still grow.
        wanted: the filter.
        budget: bytes to read at most, shared by the ranks of a generation.
    """
    found: list[tuple[int, str]] = []
    whole = True
    for folder in sorted(logs.glob("*.*/"), key=parse_generation, reverse=True):
        if budget <= 0 or len(found) > SHOWN:
            return found, False
        paths = [path for path in folder.glob("rank-*.log") if _is_wanted(path, wanted.rank)]
        share = max(_LEAST, budget // max(1, len(paths)))
        lines: list[tuple[float, int, int, str]] = []
        for path in paths:
            with suppress(OSError):
                end = ends.get(path)
                size = path.stat().st_size if end is None else end
                start = line_start(path, share) if size > share else 0
                whole = whole and start == 0
                budget -= size - start
                # Keep only the newest lines of each log that could be shown.
                lines += deque(_search_file(path, start, size, wanted.text), maxlen=SHOWN + 1)
        found[:0] = [(rank, text) for _, rank, _, text in sorted(lines)]
    return found, whole


def _search_file(
    path: Path, start: int, end: int, wanted: str
) -> Iterator[tuple[float, int, int, str]]:
    """Yield matching lines with their time, rank and end position."""
    with open_regular(path) as file:
        file.seek(start)
        content = file.read(max(0, end - start))
    if wanted.isascii() and wanted.lower().encode() not in content.lower():
        return  # no match, as in most logs: skip splitting
    notes = _read_notes(path)
    sizes, needle, place = [size for size, _ in notes], wanted.lower(), start
    for line in content.split(b"\n"):
        place += len(line) + 1
        text = line.decode(errors="replace").rstrip("\r")
        if line and needle in text.lower():
            at = bisect_left(sizes, place)
            time_s = notes[at][1] if at < len(notes) else float("inf")
            yield time_s, parse_rank(path), place, text[:LONGEST]


def _read_notes(log: Path) -> list[tuple[int, float]]:
    """Return the recorded sizes of a log, with their times."""
    notes: list[tuple[int, float]] = []
    with suppress(OSError):
        notes += LogTimes(log, recent=1 << 20).read()
    return notes


def _is_wanted(path: Path, rank: int | None) -> bool:
    return rank is None or parse_rank(path) == rank
