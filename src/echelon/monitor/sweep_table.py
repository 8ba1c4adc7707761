"""The table of a sweep: parameters, state, and a metric of each task."""

import math
from collections.abc import Iterable, Sequence

from echelon.monitor.overview import newest_metrics
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged

_SPEEDS = ("rate", "data_wait")
"""Logged with every step, but not what a sweep compares."""


def find_metric(runs: Iterable[RunDir]) -> str:
    """Return the first metric that the first of some runs has logged; empty if none has any."""
    for run in runs:
        for name in newest_metrics(run.metrics):
            if name not in _SPEEDS:
                return name
    return ""


def read_last(run: RunDir, metric: str) -> float | None:
    """Return the newest value of a metric."""
    return newest_metrics(run.metrics).get(metric)


def read_best(run: RunDir, metric: str, *, largest: bool) -> float | None:
    """Return the smallest or largest value of a metric."""
    values = [value for _, value in read_curve(run, metric) if not math.isnan(value)]
    return (max if largest else min)(values, default=None)


def read_curve(run: RunDir, metric: str) -> list[tuple[int, float]]:
    """Return all values of a metric, each with its step; a step that was repeated counts once."""
    reader, found = EventReader(run.metrics, MetricEvent), dict[int, float]()
    while records := reader.read():
        for record in records:
            event = record.event
            if not isinstance(event, StepLogged | ValidationLogged):
                continue
            name = metric.removeprefix("validation/")
            if isinstance(event, ValidationLogged) != (name != metric):
                continue
            if name in event.metrics:
                found[event.step] = event.metrics[name]
    return sorted(found.items())


def sort_rows(rows: Sequence[Sequence[str]], column: int, *, down: bool) -> list[Sequence[str]]:
    """Sort rows by a column: numbers by size, then words, then empty cells. Pure."""

    def key(row: Sequence[str]) -> tuple[int, float, str]:
        cell = row[column]
        try:
            number = float(cell)
        except ValueError:
            return (1 if cell else 2), 0.0, cell
        return 0, -number if down else number, ""

    return sorted(rows, key=key)
