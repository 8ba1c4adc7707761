"""Ranks over time: a column for each second, a row for each rank. A straggler is a stripe."""

from collections.abc import Iterable
from typing import Any

from echelon.core.series import Sample
from echelon.monitor.snapshot import shorten

KINDS = ("steps", "util")
"""What is drawn: steps per second, and how busy the rank's GPU is."""


class HeatMap:
    """Takes samples of all nodes, in any order, and keeps the newest seconds."""

    def __init__(self, columns: int) -> None:
        self._most = columns
        self._columns: dict[int, dict[str, dict[int, float]]] = {}
        self._changed: set[int] = set()

    def feed(self, sample: Sample) -> None:
        at_s = round(sample.time_s)
        column = self._columns.get(at_s)
        if column is None:
            column = self._columns[at_s] = {kind: {} for kind in KINDS}
            while len(self._columns) > self._most:
                del self._columns[min(self._columns)]
        self._changed.add(at_s)
        for name, value in sample.means.items():
            if name.startswith("rank") and name.endswith(".steps"):
                column["steps"][int(name[4:-6])] = value
        for name, value in sample.lasts.items():
            if name.startswith("rank") and name.endswith(".gpu"):
                util = sample.means.get(f"gpu{int(value)}.util")
                if util is not None:
                    column["util"][int(name[4:-4])] = util

    def whole(self, ranks: int) -> list[dict[str, Any]]:
        """Return all columns, the oldest first."""
        self._changed.clear()
        return self._render(sorted(self._columns), ranks)

    def news(self, ranks: int) -> list[dict[str, Any]]:
        """Return the columns that have changed since the last time."""
        times = sorted(self._changed & self._columns.keys())
        self._changed.clear()
        return self._render(times, ranks)

    def _render(self, times: Iterable[int], ranks: int) -> list[dict[str, Any]]:
        return [
            {
                "time": at_s,
                **{
                    kind: [shorten(self._columns[at_s][kind].get(rank)) for rank in range(ranks)]
                    for kind in KINDS
                },
            }
            for at_s in times
        ]
