"""The checkpoints of a run, read from its folder. docs/checkpoints.md describes the format."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echelon.core.records import find_record, to_count
from echelon.monitor.snapshot import shorten

_NAME = re.compile(r"step-(\d{9,18})")
_MOST = 12
"""Number of checkpoints that are shown."""
_LONGEST = 16 << 20
"""Metrics are not read from manifests larger than this, in bytes."""


class Saves:
    """Lists the folder when it has changed, and reads each checkpoint's manifest once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._known: dict[tuple[int, int], dict[str, Any]] = {}
        self.rows: list[dict[str, Any]] = []
        """The newest first: step, time, bytes, metrics, and whether it is the best."""

    def read(self) -> None:
        """Check the folder once."""
        seen = _changed_ns(self._folder), _changed_ns(self._folder / "best.json")
        if seen == self._seen:
            return
        self._seen = seen
        try:
            steps = {
                int(name[1]): path
                for path in self._folder.iterdir()
                if (name := _NAME.fullmatch(path.name))
            }
        except OSError:
            steps = {}
        best = to_count(find_record(self._folder / "best.json", most=_LONGEST).get("step"))
        shown = sorted(steps, reverse=True)[:_MOST]
        if best is not None and best in steps and best not in shown:
            shown.append(best)
        rows = [(step, self._describe(step, steps[step])) for step in shown]
        self.rows = [{**row, "best": step == best} for step, row in rows if row]

    def _describe(self, step: int, path: Path) -> dict[str, Any] | None:
        manifest = path / "manifest.json"
        written_ns = _changed_ns(manifest)
        if not written_ns:
            return None  # a checkpoint without a manifest does not exist
        if (step, written_ns) not in self._known:
            told = find_record(manifest, most=_LONGEST)
            self._known[step, written_ns] = {
                "step": step,
                "time": written_ns / 1e9,
                "bytes": _size(told),
                "metrics": _numbers(told.get("metrics")),
            }
        return self._known[step, written_ns]


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _size(told: Mapping[str, Any]) -> int | None:
    shards = told.get("shards")  # of version 1
    if not isinstance(shards, list):
        return to_count(told.get("bytes"))
    return sum(to_count(one.get("bytes")) or 0 for one in shards if isinstance(one, Mapping))


def _numbers(metrics: Any) -> dict[str, float | None]:
    if not isinstance(metrics, Mapping):
        return {}
    return {
        str(name): shorten(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
