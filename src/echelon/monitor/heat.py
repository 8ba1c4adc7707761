"""Heat map of ranks over time: one column per second, one row per rank."""

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.core.records import MOST_RANKS, open_regular
from echelon.monitor.state import split_name
from echelon.run.series import MOST_TAIL, Sample, read_last_lines

KINDS = ("busy", "steps", "util")
"""Values that are drawn: the share of its time in which a rank did not wait, steps per second, and
GPU utilisation."""
_SHARES = ("busy", "util")
_AT_ONCE = 2000
"""Number of lines that are read to fill the map when the page is opened."""
_OF_RANK = re.compile(rb'"rank(\d{1,6})\.(busy|steps|gpu)":([^,}]+)')
_OF_GPU = re.compile(rb'"gpu(\d{1,6})\.util":([^,}]+)')
_TIME = re.compile(rb'\{"time":(\d{1,12}(?:\.\d+)?),')


Cells = dict[str, dict[int, float]]
"""Kind of value, rank, value."""


@dataclass(slots=True, kw_only=True)
class _Column:
    version: int = 0
    """Version in which it last changed."""
    span: int = 1
    """Number of seconds that it covers."""
    kinds: dict[str, "array[float]"] = field(default_factory=dict)


class HeatMap:
    """Collects samples of all nodes, in any order, and keeps the newest seconds."""

    def __init__(self, columns: int) -> None:
        self._most = columns
        self._columns: dict[int, _Column] = {}
        self.version = 0
        """Increases with each change."""

    def feed(self, sample: Sample) -> None:
        """Add a sample."""
        means = sample.means
        cells: Cells = {kind: {} for kind in KINDS}
        for name, value in means.items():
            owner, rank, what = split_name(name)
            if owner == "rank" and what in ("busy", "steps"):
                cells[what][rank] = value
        for name, value in sample.lasts.items():
            owner, rank, what = split_name(name)
            if owner == "rank" and what == "gpu":
                util = means.get(f"gpu{int(value)}.util")
                if util is not None:
                    cells["util"][rank] = util
        self.put(round(sample.time_s), cells)

    def put(self, at_s: int, cells: Cells, *, span: int = 1) -> None:
        """Set cells of a column that covers `span` seconds."""
        column = self._columns.get(at_s)
        if column is None:
            if len(self._columns) >= self._most:
                if at_s < min(self._columns):
                    return
                del self._columns[min(self._columns)]
            column = self._columns[at_s] = _Column()
        self.version += 1
        column.version, column.span = self.version, span
        for kind, values in cells.items():
            if values:
                row = column.kinds.setdefault(kind, array("f"))
                if (last := min(max(values), MOST_RANKS)) >= len(row):
                    row.extend([math.nan] * (last + 1 - len(row)))
                for rank, value in values.items():
                    if rank <= last:
                        row[rank] = value

    def since(self, version: int, ranks: int) -> list[dict[str, Any]]:
        """Return the columns changed since a version, the oldest first."""
        return [
            {
                "time": at_s,
                **({"span": column.span} if column.span > 1 else {}),
                **{kind: _render(kind, row, ranks) for kind, row in sorted(column.kinds.items())},
            }
            for at_s, column in sorted(self._columns.items())
            if column.version > version
        ]


def _render(kind: str, row: "array[float]", ranks: int) -> list[float | None]:
    """Round values to what can be seen: shares to whole percents, others to three digits."""
    cells = row[:ranks]
    shown: list[float | None] = [
        (round(100 * one) if kind in _SHARES else float(f"{one:.3g}"))
        if math.isfinite(one)
        else None
        for one in cells
    ]
    return shown + [None] * (ranks - len(shown))


# --- older samples ------------------------------------------------------------------------------


def recall(heat: HeatMap, files: list[Path], seconds: int) -> None:
    """Fill a map with the newest samples of these nodes; with many nodes, only with some."""
    stride = -(-len(files) * seconds // _AT_ONCE) or 1
    for path in files:
        try:
            with open_regular(path) as file:
                # One read of about the needed size, because reading takes half of the time.
                end, last = read_last_lines(file, 1)
                file.seek(max(0, end - min(seconds * len(last), MOST_TAIL)))
                content = file.read(2 * MOST_TAIL)
        except OSError:
            continue
        for at_s, line in _every(stride, content):
            heat.put(at_s, parse_cells(line), span=stride)


def _every(stride: int, content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield lines of the same seconds for each node, so that columns are complete."""
    for line in content.split(b"\n")[:-1]:
        time = _TIME.match(line)
        if time and (at_s := round(float(time[1]))) % stride == 0:
            yield at_s, line


def parse_cells(line: bytes) -> Cells:
    """Parse the drawn values of a sample's line, three times faster than parsing all of it."""
    found: dict[bytes, dict[int, float]] = {b"busy": {}, b"steps": {}, b"gpu": {}}
    try:
        for number, kind, text in _OF_RANK.findall(line):
            found[kind][int(number)] = float(text)
        utils = {int(number): float(text) for number, text in _OF_GPU.findall(line)}
        gpus = {rank: int(gpu) for rank, gpu in found[b"gpu"].items()}
    except (ValueError, OverflowError):
        return {}  # not a sample
    return {
        "busy": found[b"busy"],
        "steps": found[b"steps"],
        "util": {rank: utils[gpu] for rank, gpu in gpus.items() if gpu in utils},
    }
