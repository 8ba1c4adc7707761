"""The table of a sweep or of chosen runs: parameters, state, and a metric of each."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from echelon.core.atomic_file import encode
from echelon.core.records import open_regular, parse_json
from echelon.errors import EchelonError
from echelon.monitor.overview import SPEEDS, newest_lines, newest_metrics, show_number
from echelon.run.attempts import attempts, outcome
from echelon.run.directory import RunDir
from echelon.run.metrics import StepLogged, ValidationLogged
from echelon.run.request import read_spec
from echelon.run.sweep import SweepDir, read_table

MOST_CURVES = 100
"""How many tasks of a sweep the page shows as curves."""
_POINTS = 200
"""How many points a curve has on the page."""
_PARAMETER = re.compile(
    r"(?:--?(?P<option>[A-Za-z][\w.-]*)|\+{0,2}(?P<name>[A-Za-z_][\w./-]*(?==)))(?:=(?P<value>.*))?",
    re.DOTALL,
)
_MOST_BYTES = 1 << 20
"""The longest line that is read."""


def find_metric(runs: Iterable[RunDir]) -> str:
    """Return the first metric that the first of some runs has logged; empty if none has any."""
    for run in runs:
        for name in newest_metrics(run.metrics):
            if name not in SPEEDS:
                return name
    return ""


def read_last(run: RunDir, metric: str) -> float | None:
    """Return the newest value of a metric; None if it is not near the end of the file."""
    found = (_read_line(line, metric) for line in reversed(newest_lines(run.metrics)))
    return next((point[1] for point in found if point), None)


def read_best(run: RunDir, metric: str, *, largest: bool) -> float | None:
    """Return the smallest or largest value of a metric."""
    values = [value for _, value in read_curve(run, metric) if not math.isnan(value)]
    return (max if largest else min)(values, default=None)


def read_curve(run: RunDir, metric: str) -> list[tuple[int, float]]:
    """Return all values of a metric, each with its step; a step that was repeated counts once."""
    try:
        with open_regular(run.metrics) as file:
            lines = iter(lambda: file.readline(_MOST_BYTES), b"")
            points = [point for line in lines if (point := _read_line(line, metric))]
    except OSError:
        return []
    return sorted(dict(points).items())


def _read_line(line: bytes, metric: str) -> tuple[int, float] | None:
    """Return the step and the value of a metric in a line of metrics; None if it has none.

    A sweep may have a million lines: those without the metric are not parsed.
    """
    name, mark, kind = _describe(metric)
    if mark not in line:
        return None
    try:
        record = parse_json(line)
        value = record["metrics"][name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if record["kind"] == kind and is_number:
            return int(record["step"]), float(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        pass  # damaged, or still being written
    return None


@lru_cache
def _describe(metric: str) -> tuple[str, bytes, str]:
    """Return the name of a metric in lines of metrics, as their bytes have it, and their kind."""
    name = metric.removeprefix("validation/")
    return (
        name,
        encode(json.dumps(name)),
        (StepLogged if name == metric else ValidationLogged).kind,
    )


def describe_sweep(sweep: SweepDir, metric: str) -> dict[str, Any]:
    """Return what the page shows of a sweep, from its files alone."""
    table = read_table(sweep)
    rows = [(sweep.run(index), table.tasks[index]) for index in table.tasks]
    return _describe_rows(table.names, rows, metric)


def describe_runs(runs: Sequence[RunDir], metric: str) -> dict[str, Any]:
    """Return the same of chosen runs; their parameters are the arguments that differ."""
    arguments = {run: _read_arguments(run) for run in runs}
    given = {run: find_parameters(words) for run, words in arguments.items()}
    names = dict.fromkeys(name for values in given.values() for name in values)
    differ = [name for name in names if len({one.get(name) for one in given.values()}) > 1]
    if not differ and len({tuple(words) for words in arguments.values()}) > 1:
        differ = ["arguments"]  # only those without a name differ
        given = {run: {"arguments": shlex.join(words)} for run, words in arguments.items()}
    rows = [(run, [values.get(name, "") for name in differ]) for run, values in given.items()]
    return _describe_rows(differ, rows, metric)


def _describe_rows(
    names: Sequence[str], parameters: Iterable[tuple[RunDir, Sequence[str]]], metric: str
) -> dict[str, Any]:
    metrics: dict[str, None] = {}
    rows: list[list[Any]] = []
    curves: list[dict[str, Any]] = []
    for run, values in parameters:
        newest = newest_metrics(run.metrics)
        metrics |= dict.fromkeys(name for name in newest if name not in SPEEDS)
        metric = metric or next(iter(metrics), "")
        rows.append([run.run_id, *values, _find_state(run), show_number(newest.get(metric))])
        if metric in newest and len(curves) < MOST_CURVES:
            curve = read_curve(run, metric)
            points = curve[:: max(1, len(curve) // _POINTS)]
            x, y = [step for step, _ in points], [value for _, value in points]
            curves.append({"run": run.run_id, "x": x, "y": y})
    return {
        "names": list(names),
        "metric": metric,
        "metrics": list(metrics),
        "rows": rows,
        "curves": curves,
    }


def _read_arguments(run: RunDir) -> Sequence[str]:
    try:
        return read_spec(run).args
    except (EchelonError, OSError):
        return ()


def find_parameters(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of `--name value`, `--name=value` and `name=value`; `yes` for a flag."""
    found: dict[str, str] = {}
    name = ""
    for word in arguments:
        if match := _PARAMETER.fullmatch(word):
            name, value = match["option"] or match["name"], match["value"]
            found[name] = "yes" if value is None else value
            name = name if value is None else ""
        elif name:
            found[name] = word if found[name] == "yes" else f"{found[name]} {word}"
    return found


def _find_state(run: RunDir) -> str:
    """Return the state of a task as far as its files tell; a job that was killed looks running."""
    known = attempts(run)
    if not known:
        return "PENDING"
    ended = outcome(run, known[-1].number)
    return "RUNNING" if ended is None else "PENDING" if ended.next else ended.state


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
