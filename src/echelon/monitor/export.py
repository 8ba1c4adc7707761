"""A run as tables, for spreadsheets and pandas: its metrics, telemetry, attempts and time.

A script chooses the names of its metrics, and a spreadsheet interprets text that begins with `=` as
a formula. Such text gets a leading apostrophe, which marks it as text.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from echelon.core.atomic_file import replacing
from echelon.core.frozen import frozen
from echelon.monitor.accounting import QUEUE, Accounts, account
from echelon.monitor.reading import RunReader
from echelon.monitor.state import AttemptState, RunState
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader, Record
from echelon.run.metrics import MetricEvent, StepLogged, ValidationLogged
from echelon.run.series import Sample, read_series

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  wide forms
"""Characters that a spreadsheet may interpret as the start of a formula."""

Cell = str | float | None
Row = Sequence[Cell]


@frozen
class Table:
    """One file. Its rows can be iterated once: there may be millions."""

    name: str
    columns: Sequence[str]
    rows: Iterable[Row]


def make_tables(run: RunDir) -> list[Table]:
    """Read a run's files; telemetry only when its rows are iterated."""
    state = RunReader(run).read()
    return [
        tabulate_metrics(EventReader(run.metrics, MetricEvent).read()),
        _tabulate_telemetry(run, state),
        tabulate_attempts(state),
        tabulate_time(account(state)),
    ]


def is_empty(run: RunDir) -> bool:
    """Tell whether a run has written nothing that a table could show."""
    if run.begun_numbers() or run.measured():
        return False
    return not EventReader(run.metrics, MetricEvent).read()


# --- tables: pure -----------------------------------------------------------------------------


def tabulate_metrics(records: Iterable[Record[MetricEvent]]) -> Table:
    """Return what the training measured, one row per step.

    Ranks that restart go back to the last checkpoint: metrics of later steps are dropped then.
    """
    kept: dict[tuple[int, str], tuple[float, Mapping[str, float]]] = {}
    for time_s, event, _ in records:
        if not isinstance(event, StepLogged | ValidationLogged) or event.step < 0:
            continue
        while kept and next(reversed(kept))[0] > event.step:
            kept.popitem()
        kept.pop((event.step, event.kind), None)
        kept[event.step, event.kind] = time_s, event.metrics
    names = list(dict.fromkeys(name for _, metrics in kept.values() for name in metrics))
    rows = [
        [format_time(time_s), kind, step, *map(metrics.get, names)]
        for (step, kind), (time_s, metrics) in kept.items()
    ]
    return Table(name="metrics.csv", columns=_distinct(["time", "kind", "step"], names), rows=rows)


def tabulate_samples(
    places: Iterable[tuple[int, int, str, Sequence[Sample]]],
) -> Table:
    """Return the telemetry, one row per value.

    Args:
        places: attempt, node, the node's name, and its samples.
    """

    def rows() -> Iterator[Row]:
        for attempt, node, host, samples in places:
            for sample in samples:
                when = format_time(sample.time_s)
                for name, value in {**sample.lasts, **sample.peaks, **sample.means}.items():
                    source, dot, what = name.partition(".")
                    of = [source, what] if dot else ["", name]
                    yield [when, attempt, node, host, *of, value, sample.count]

    columns = ("time", "attempt", "node", "host", "source", "name", "value", "samples")
    return Table(name="telemetry.csv", columns=columns, rows=rows())


def tabulate_attempts(state: RunState) -> Table:
    """Return one row per generation of ranks, and one for an attempt that had none."""
    columns = ("attempt", "generation", "job", "began", "ended", "ranks", "nodes", "outcome", "why")
    rows = [row for number in sorted(state.attempts) for row in _rows_of(state.attempts[number])]
    return Table(name="attempts.csv", columns=columns, rows=rows)


def _rows_of(attempt: AttemptState) -> Iterator[Row]:
    ended, end_s = attempt.outcome, attempt.ended_s
    if not attempt.generations:
        times = format_time(attempt.began_s), format_time(end_s)
        yield [attempt.number, None, attempt.job_id, *times, None, None, ended, attempt.why]
    for one in attempt.generations:
        last = one is attempt.generations[-1]
        over = format_time(end_s if last and one.ended_s is None else one.ended_s)
        times = format_time(one.began_s), over
        size = one.ranks, one.nodes
        outcome, why = (ended, one.why or attempt.why) if last else ("", one.why)
        yield [attempt.number, one.number, attempt.job_id, *times, *size, outcome, why]


def tabulate_time(accounts: Accounts) -> Table:
    """Return where the time went: seconds of all slots, and their share of the allocated time."""
    whole = accounts.allocated_us / 1e6
    rows = [
        [phase, seconds, round(seconds / whole, 6) if whole and phase != QUEUE else None]
        for phase, seconds in accounts.seconds.items()
        if whole or seconds
    ]
    return Table(name="time.csv", columns=("phase", "seconds", "share"), rows=rows)


def format_time(time_s: float | None) -> str:
    """Return a time in UTC, as spreadsheets and pandas read it; empty for None."""
    try:
        when = datetime.fromtimestamp(time_s or 0.0, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return ""  # not a possible time
    return when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if time_s else ""


def neutralise(text: str) -> str:
    """Return text that no spreadsheet interprets as a formula, and that any program can read."""
    clean = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    clean = clean.encode(errors="replace").decode()
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _distinct(own: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return distinct column names: a metric may be called `step`."""
    found = list(own)
    for name in map(neutralise, names):
        head = name
        while head in found:
            head += "_"
        found.append(head)
    return found


# --- files ------------------------------------------------------------------------------------


def _tabulate_telemetry(run: RunDir, state: RunState) -> Table:
    def find_host(attempt: int, node: int) -> str:
        known = state.attempts.get(attempt)
        return known.hosts.get(node, "") if known else ""

    return tabulate_samples(
        (*place, find_host(*place), read_series(partial(run.telemetry, *place)))
        for place in run.measured()
    )


def write_csv(table: Table, path: Path) -> int:
    """Write a table to a file, all of it or nothing; return the number of rows."""
    count = 0
    with replacing(path, mode=0o666) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(neutralise, table.columns))
        for row in table.rows:
            writer.writerow([neutralise(c) if isinstance(c, str) else c for c in row])
            count += 1
        text.detach()
    return count
