"""A run as tables, for spreadsheets and pandas: what it measured, its attempts, where time went.

Names in it are a script's own, and a spreadsheet takes a text that begins with `=` for a formula:
such a text gets an apostrophe in front, which says that it is none.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from echelon.core.atomic_file import replacing
from echelon.core.records import to_count
from echelon.monitor.accounting import QUEUE, Accounts, account, read_attempts
from echelon.monitor.reading import RunReader
from echelon.monitor.state import AttemptState, RunState
from echelon.run.directory import RunDir
from echelon.run.event_log import Event, EventReader
from echelon.run.series import Sample, read_series

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  they count too
"""What a spreadsheet may take for the beginning of a formula."""

Cell = str | float | None
Row = Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file. Its rows can be gone through once: there may be millions."""

    name: str
    columns: Sequence[str]
    rows: Iterable[Row]


def make_tables(run: RunDir) -> list[Table]:
    """Read all that a run has written; of telemetry, only when its rows are asked for."""
    state = RunReader(run).read()
    return [
        tabulate_metrics(EventReader(run.metrics).read()),
        _tabulate_telemetry(run, state),
        tabulate_attempts(state),
        tabulate_time(account(read_attempts(run))),
    ]


def is_empty(run: RunDir) -> bool:
    """Tell whether there is nothing to make tables of."""
    begun = any(run.events.glob("controller-*.jsonl"))
    return not begun and not run.measured() and not EventReader(run.metrics).read()


# --- tables: pure -----------------------------------------------------------------------------


def tabulate_metrics(events: Sequence[Event]) -> Table:
    """Return what the training measured, a row for each step that counts.

    Ranks that start anew go back to what was saved: what was told of later steps is void then.
    """
    kept: dict[tuple[int, str], tuple[float, Mapping[str, object]]] = {}
    for event in events:
        step, told = event.data.get("step"), event.data.get("metrics")
        if not isinstance(step, int) or not isinstance(told, Mapping):
            continue
        while kept and next(reversed(kept))[0] > step:
            kept.popitem()
        kept.pop((step, event.kind), None)
        kept[step, event.kind] = event.time_s, told
    names = list(dict.fromkeys(str(name) for _, told in kept.values() for name in told))
    rows = [
        [format_time(time_s), kind, step, *(_number(told.get(name)) for name in names)]
        for (step, kind), (time_s, told) in kept.items()
    ]
    return Table(name="metrics.csv", columns=_distinct(["time", "kind", "step"], names), rows=rows)


def tabulate_samples(
    places: Iterable[tuple[int, int, str, Sequence[Sample]]],
) -> Table:
    """Return measurements, a row for each value.

    Args:
        places: attempt, node, the node's name, and what was measured there.
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
    """Return a row for each generation of ranks, and one for an attempt that had none."""
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
    """Return where the time went: seconds of all slots, and the share of what was allocated."""
    whole = accounts.allocated_us / 1e6
    rows = [
        [phase, seconds, round(seconds / whole, 6) if whole and phase != QUEUE else None]
        for phase, seconds in accounts.seconds.items()
        if whole or seconds
    ]
    return Table(name="time.csv", columns=("phase", "seconds", "share"), rows=rows)


def format_time(time_s: float | None) -> str:
    """Return a time as spreadsheets and pandas read it, UTC; empty for none."""
    try:
        when = datetime.fromtimestamp(time_s or 0.0, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return ""  # somebody wrote what is no time
    return when.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if time_s else ""


def neutralise(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, and that any reader can read."""
    clean = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    clean = clean.encode(errors="replace").decode()
    return f"'{clean}" if clean.startswith(_FORMULA) else clean


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _distinct(own: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the heads of columns, of which no two are the same: a metric may be called `step`."""
    found = list(own)
    for name in map(neutralise, names):
        head = name
        while head in found:
            head += "_"
        found.append(head)
    return found


# --- files ------------------------------------------------------------------------------------


def _tabulate_telemetry(run: RunDir, state: RunState) -> Table:
    hosts = {
        (number, to_count(event.data.get("node"))): str(event.data.get("name", ""))
        for number in state.attempts
        for event in EventReader(run.events_of(f"controller-{number}")).read()
        if event.kind == "joined"
    }
    return tabulate_samples(
        (*place, hosts.get(place, ""), read_series(partial(run.telemetry, *place)))
        for place in run.measured()
    )


def write_csv(table: Table, path: Path) -> int:
    """Put a table under a path, all of it or nothing; return how many rows it has."""
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
