"""A record of measurements in files that stay small, however long it is kept.

New samples are kept one by one. When a file is full, its older half is summarised, ten samples into
one, and moved to the next file: minutes are kept per second, hours per ten seconds, weeks per
quarter of an hour. One writer per series; anyone may read at any time.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from echelon.core.atomic_file import write_atomic
from echelon.core.frozen import frozen
from echelon.core.records import MOST_COUNT, MOST_NUMBER, is_time, parse_json, read_bytes

LINES = 1200
"""Most lines of a file."""
FOLD = 10
"""How many samples are summarised into one."""
_LEVELS = 5
_BLOCK = 1 << 13
MOST_TAIL = 16 << 20
"""How many bytes at the end of a file are searched for its last lines."""


@frozen
class Sample:
    """Values measured at one time, or summarised over a period."""

    time_s: float
    """When, or the end of the period: seconds since the epoch, by the writer's clock."""
    count: int = 1
    """How many samples it summarises."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Values that are averaged, such as utilisation."""
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Values that are merged by their maximum, such as memory."""
    lasts: Mapping[str, float] = field(default_factory=dict)
    """Values that are merged by taking the newest, such as a step."""


def summarise(samples: Sequence[Sample]) -> Sample:
    """Summarise samples, which are in order of time."""
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    peaks: dict[str, float] = {}
    lasts: dict[str, float] = {}
    for sample in samples:
        for name, value in sample.means.items():
            totals[name] = totals.get(name, 0.0) + value * sample.count
            counts[name] = counts.get(name, 0) + sample.count
        for name, value in sample.peaks.items():
            peaks[name] = max(value, peaks.get(name, -math.inf))
        lasts |= sample.lasts
    return Sample(
        time_s=samples[-1].time_s,
        count=sum(sample.count for sample in samples),
        means={name: total / counts[name] for name, total in totals.items()},
        peaks=peaks,
        lasts=lasts,
    )


def render_sample(sample: Sample) -> str:
    """Return a sample as a line, without a newline."""
    record = {
        "time": round(sample.time_s, 3),
        "count": sample.count,
        "mean": _rounded(sample.means),
        "peak": _rounded(sample.peaks),
        "last": _rounded(sample.lasts),
    }
    kept = {key: value for key, value in record.items() if value != {}}
    return json.dumps(kept, separators=(",", ":"))


def parse_sample(line: str) -> Sample | None:
    """Parse a line; None if it is torn or not a sample."""
    try:
        record = parse_json(line)
        sample = Sample(
            time_s=float(record["time"]),
            count=int(record["count"]),
            means=_numbers(record.get("mean", {})),
            peaks=_numbers(record.get("peak", {})),
            lasts=_numbers(record.get("last", {})),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return sample if is_time(sample.time_s) and 0 < sample.count < MOST_COUNT else None


class SeriesWriter:
    """Appends to a series, which may exist already."""

    def __init__(self, level: Callable[[int], Path], *, lines: int = LINES) -> None:
        self._level, self._most = level, lines
        self._lines: dict[int, int] = {}

    def append(self, sample: Sample) -> None:
        """Add a sample that is newer than all others.

        Raises:
            OSError: it cannot be written.
        """
        self._append(0, [sample])

    def _append(self, number: int, samples: Sequence[Sample]) -> None:
        path = self._level(number)
        if number not in self._lines:
            self._lines[number] = len(read_file(path))
        text = "".join(f"{render_sample(sample)}\n" for sample in samples)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
        self._lines[number] += len(samples)
        if self._lines[number] > self._most:
            self._compact(number)

    def _compact(self, number: int) -> None:
        """Move the older half on, then keep the rest; readers skip what they find twice."""
        kept = read_file(self._level(number))
        older = len(kept) // 2 // FOLD * FOLD
        if number + 1 < _LEVELS:
            groups = [kept[at : at + FOLD] for at in range(0, older, FOLD)]
            self._append(number + 1, [summarise(group) for group in groups])
        rest = kept[older:]
        write_atomic(self._level(number), "".join(f"{render_sample(one)}\n" for one in rest))
        self._lines[number] = len(rest)


def read_file(path: Path) -> list[Sample]:
    """Return the samples of one file; none if it does not exist."""
    try:
        lines = read_bytes(path).decode(errors="replace").split("\n")[:-1]  # the last may be torn
    except OSError:
        return []
    return [sample for sample in map(parse_sample, lines) if sample]


def read_last_lines(file: BinaryIO, lines: int) -> tuple[int, bytes]:
    """Return the offset of the last `lines` whole lines of a file, and the content from there."""
    end = start = file.seek(0, os.SEEK_END)
    parts: list[bytes] = []
    found, size = 0, _BLOCK
    least = max(0, end - MOST_TAIL)
    while start > least and found <= lines:
        stop, start = start, max(least, start - size)
        file.seek(start)
        parts.append(file.read(stop - start))
        found += _count_lines(parts[-1])
        # Assume that the other lines are about as long.
        size = max(size, (lines + 2 - found) * (end - start) // max(1, found))
    content = b"".join(reversed(parts))
    if start > 0 and found <= lines:
        lines = max(0, found - 1)  # the first line is incomplete
    if found > lines:
        content = content.split(b"\n", found - lines)[-1]
    return end - len(content), content


def _count_lines(content: bytes) -> int:
    """Count newlines with `find`: for long lines, `bytes.count` is much slower."""
    count, at = 0, content.find(b"\n")
    while at >= 0:
        count, at = count + 1, content.find(b"\n", at + 1)
    return count


def read_series(level: Callable[[int], Path]) -> list[Sample]:
    """Return all samples, the oldest and coarsest first."""
    return list(_in_order(read_file(level(number)) for number in reversed(range(_LEVELS))))


def _in_order(files: Iterable[Sequence[Sample]]) -> Iterator[Sample]:
    """Skip samples that a coarser file has summarised, and those written with a wrong clock."""
    newest_s = -math.inf
    for sample in (sample for file in files for sample in file):
        if sample.time_s > newest_s:
            newest_s = sample.time_s
            yield sample


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Round to five digits, and drop what is not finite."""
    return {
        name: value if float(value).is_integer() else float(f"{value:.5g}")
        for name, value in values.items()
        if math.isfinite(value)
    }


def _numbers(values: Any) -> dict[str, float]:
    found = {str(name): float(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if abs(value) < MOST_NUMBER}
