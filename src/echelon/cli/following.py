"""Print a run's output, until its end."""

import math
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from echelon.cli import console
from echelon.client.manage.waiting import (
    exit_code,
    keeping_run,
    wait_for_own_run,
    wait_for_run,
)
from echelon.clusters.base import Cluster
from echelon.core.frozen import frozen
from echelon.core.records import MOST_RANKS
from echelon.core.terminal_escape import in_one_line, is_redrawn, settled
from echelon.core.units import parse_duration
from echelon.core.waiting import CLOCK, Clock
from echelon.errors import NotFoundError, UsageError
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.events import GenerationStarted, RunEvents
from echelon.run.metrics import MetricEvent, StepLogged, render_progress
from echelon.run.rank_logs import Line, RunLogs, Tail, last_lines_start
from echelon.run.request import has_controller

_COLOURS = (36, 33, 32, 35, 34, 31)
_TRACEBACK = "Traceback (most recent call last):"
_LABEL = re.compile(r" *(\d{1,9}): ")
"""The label that srun puts before a task's line."""
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_AGO = re.compile(r"(?:[0-9]+[dhms])+", re.IGNORECASE)
_BAR_S, _LINE_S = 0.2, 10.0
"""Seconds between two states of a rank's progress bar: in a terminal, and elsewhere."""


def follow_run(
    run: RunDir,
    cluster: Cluster,
    *,
    show: bool,
    choice: "Choice | None" = None,
    resubmit: bool = False,
    raw: bool = False,
    position: "Position | None" = None,
    clock: Clock = CLOCK,
) -> int:
    """Wait until a run ends, over all its jobs, and return the command's exit code.

    Args:
        run: the run.
        cluster: where it runs.
        show: print its output.
        choice: print only these lines.
        resubmit: submit the next attempt when the run's own jobs cannot.
        raw: print control characters unchanged.
        position: where the output begins, and where its progress is reported.
        clock: the clock.
    """
    screen = _Screen(run, choice, raw=raw, position=position) if show else None
    with keeping_run(run.run_id):
        return exit_code(wait_for_run(run, cluster, screen, resubmit=resubmit, clock=clock))


def follow_to_the_end(run: RunDir, cluster: Cluster, clock: Clock = CLOCK) -> int:
    """Follow a run that belongs to this command: Ctrl-C stops it, a second one cancels it."""
    return exit_code(wait_for_own_run(run, cluster, _Screen(run), clock))


def print_logs(run: RunDir, choice: "Choice", *, raw: bool = False) -> bool:
    """Print the output of a run, or some of its lines; return whether there was any."""
    return _Screen(run, choice, raw=raw).show(over=True)


@frozen
class Choice:
    """Which lines of a run's output to print."""

    ranks: frozenset[int] = frozenset()
    """Only lines of these ranks; empty for all."""
    tail: int | None = None
    """Only so many of the lines that exist already; None for all."""
    since_s: float = 0.0
    """Only lines that were printed since then, in seconds since the epoch."""

    @classmethod
    def of(cls, run: RunDir, *, rank: Sequence[str], tail: int | None, since: str) -> "Choice":
        """Return the choice that the options of `logs` describe.

        Raises:
            UsageError: a value is invalid.
            NotFoundError: the run has no such rank.
        """
        ranks = parse_ranks(rank)
        since_s = parse_since(since, time.time()) if since else 0.0
        if ranks:
            _check_ranks(run, max(ranks))
        return cls(ranks=ranks, tail=tail, since_s=since_s)


def parse_ranks(texts: Sequence[str]) -> frozenset[int]:
    """Parse numbers and ranges of ranks, such as `0,4-7`.

    Raises:
        UsageError: a text is neither.
    """
    found: set[int] = set()
    for part in ",".join(texts).split(",") if texts else ():
        match = _RANKS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MOST_RANKS:
            raise UsageError(f"'{part}' is not a rank", hint="write numbers and ranges: 3 or 0,4-7")
        found |= {*range(first, last + 1)}
    return frozenset(found)


def parse_since(text: str, now_s: float) -> float:
    """Parse a time, or how long ago it was; return seconds since the epoch.

    Raises:
        UsageError: the text is neither.
    """
    if _AGO.fullmatch(text):  # a number without a unit is refused as ambiguous
        return now_s - (parse_duration(text) or 0)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"invalid value for --since: '{text}'",
            hint="write how long ago (90s, 10m, 1h30m, 2d) or a time (2026-01-31T17:00)",
        ) from None


def _check_ranks(run: RunDir, highest: int) -> None:
    """Check that a rank existed in some generation; a run that has not started passes."""
    sizes = [
        record.event.world_size
        for _, record in RunEvents(run).read()
        if isinstance(record.event, GenerationStarted)
    ]
    if sizes and highest >= (size := max(sizes)):
        known = f"its ranks are 0-{size - 1}" if size > 1 else "its only rank is 0"
        raise NotFoundError(
            f"the run '{run.run_id}' has no rank {highest}: {known}",
            hint=f"print all ranks' output: echelon logs {run.run_id}",
        )


@frozen
class Position:
    """How far a run's output was printed, so that it continues there after a lost connection."""

    tell: Callable[[Mapping[str, Mapping[str, int]]], None]
    """Called with a position once everything before it was printed."""
    begin: Mapping[str, Mapping[str, int]] | None = None
    """The position to begin at."""


class _Screen:
    """Prints what a run writes, and remembers how far it has read."""

    def __init__(
        self,
        run: RunDir,
        choice: Choice | None = None,
        *,
        raw: bool = False,
        position: Position | None = None,
    ) -> None:
        begin, choice = position.begin if position else None, choice or Choice()
        self._run, self._ranks, self._raw = run, choice.ranks, raw
        self._last = choice.tail if begin is None else None
        self._since_s = choice.since_s if begin is None else 0.0
        self._logs = RunLogs(run.logs, ranks=choice.ranks)
        self._jobs: dict[Path, Tail] = {}
        if begin is not None:
            self._logs.continue_from(begin["ranks"])
            self._jobs = {Path(p): Tail(Path(p), start=end) for p, end in begin["jobs"].items()}
        elif self._last is not None:
            self._logs.skip(self._last)
        self._folded = FoldedTracebacks()
        self._bar = _Bar(run, self._logs)
        self._position = position

    def show(self, *, over: bool) -> bool:
        """Print what is new; return whether there was anything."""
        if over:
            self._bar.hide()
        parts = [self._show_jobs, self._show_ranks]
        if over and self._run.verdict.exists():
            # The job's output ends with the cause of the failure: print it after the ranks' output.
            parts.reverse()
        found = [part(over=over) for part in parts]
        self._last = None  # later lines are printed in full
        if not over:
            self._bar.draw()
        if self._position:
            jobs = {str(path): tail.offset for path, tail in self._jobs.items()}
            self._position.tell({"ranks": self._logs.position(), "jobs": jobs})
        return any(found)

    def _show_jobs(self, *, over: bool) -> bool:
        """Print the output of the jobs themselves: messages of their controllers."""
        found = False
        # Without a controller there are no rank logs; srun labels the lines of its tasks.
        labelled = not has_controller(self._run)
        for attempt in attempts(self._run):
            path = find_output(self._run, attempt)
            if attempt.output and path.is_file():
                if path not in self._jobs:
                    # The lines of a job have no times: an old file is skipped as a whole.
                    if path.stat().st_mtime < self._since_s:
                        continue
                    start = 0 if self._last is None else last_lines_start(path, self._last)
                    self._jobs[path] = Tail(path, start=start)
                for _, text in self._jobs[path].read(over=over):
                    self._bar.hide()
                    found |= self._show_job(text, labelled=labelled)
        return found

    def _show_ranks(self, *, over: bool) -> bool:
        found = False
        # Lines without a recorded time count as the newest, whatever this machine's clock says.
        lines: Iterable[Line] = self._logs.read(over=over, now_s=math.inf)
        if self._since_s:
            lines = (line for line in lines if line.time_s >= self._since_s)
        if self._last is not None:
            lines = deque(lines, maxlen=self._last)
        for line in lines if self._raw else self._folded.fold(lines):
            self._bar.hide()
            self._print_labelled(line.rank, line.text)
            found = True
        console.flush()
        return found

    def _show_job(self, text: str, *, labelled: bool) -> bool:
        """Print a line of the job's output, as a rank's if srun has labelled it.

        Returns whether it was printed.
        """
        match = _LABEL.match(text) if labelled else None
        if not labelled and not self._ranks:
            console.note(settled(text))
        elif not self._ranks and match is None:
            self._print(text)
        elif match and (not self._ranks or int(match[1]) in self._ranks):
            self._print_labelled(int(match[1]), text[match.end() :])
        else:
            return False
        return True

    def _print_labelled(self, rank: int, text: str) -> None:
        """Print `3: text`, colored by rank in a terminal."""
        label = f"{rank}: "
        if console.is_terminal():
            label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
        self._print(text, label)

    def _print(self, text: str, label: str = "") -> None:
        if self._raw:
            console.print_raw(label + text)
        elif not is_redrawn(text):
            console.print_result(label + settled(text))


class FoldedTracebacks:
    """Replaces a traceback that another rank has printed already by its last line."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], int] = {}
        """Lines of a traceback → the first rank that printed them."""

    def fold(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines to print. A rank's traceback is kept back until its last line."""
        pending: dict[int, list[Line]] = {}
        for line in lines:
            if block := pending.get(line.rank):
                block.append(line)
                text = _own_text(line)
                if text and not text[0].isspace():
                    yield from self._shorten(pending.pop(line.rank))
            elif line.text.endswith(_TRACEBACK) and _own_text(line) == _TRACEBACK:
                pending[line.rank] = [line]
            else:
                yield line
        for block in pending.values():  # the rest of a traceback may follow with the next read
            yield from block

    def _shorten(self, block: list[Line]) -> list[Line]:
        rank, last = block[0].rank, block[-1]
        first = self._first.setdefault(tuple(map(_own_text, block)), rank)
        if first == rank:
            return block
        return [replace(last, text=f"{last.text} (same traceback as rank {first})")]


def _own_text(line: Line) -> str:
    """Return a line without the prefix `[rank3]:` that torch adds to tracebacks."""
    return line.text.removeprefix(f"[rank{line.rank}]: ").removeprefix(f"[rank{line.rank}]:")


class _Bar:
    """Training progress in the last line of a terminal: reported steps, or a rank's own bar.

    Without a terminal, a line with the bar is printed every few seconds.
    """

    def __init__(self, run: RunDir, logs: RunLogs) -> None:
        self._terminal = bool(sys.stderr and sys.stderr.isatty())
        self._metrics = EventReader(run.metrics, MetricEvent) if self._terminal else None
        self._logs = logs
        self._text, self._drawn, self._from_rank = "", False, False
        self._next_s = time.monotonic() + (0 if self._terminal else _LINE_S)

    def hide(self) -> None:
        if self._drawn and self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn, self._next_s = False, 0.0  # check soon whether a rank's bar has ended

    def draw(self) -> None:
        for record in self._metrics.read() if self._metrics else ():
            if isinstance(record.event, StepLogged):
                self._set(render_progress(record.event, bar=True))
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + (_BAR_S if self._terminal else _LINE_S)
            if found := self._logs.find_bar():
                self._set(f"{found[0]}: {settled(found[1])}")
                self._from_rank = True
            elif self._from_rank:
                self._set("")
                self._from_rank = False
        if self._text and not self._drawn:
            self._show()

    def _set(self, text: str) -> None:
        if text != self._text:
            self._text, self._drawn = text, False

    def _show(self) -> None:
        self._drawn = True
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{in_one_line(self._text)[:width]}\x1b[K")
            sys.stderr.flush()
        else:
            console.note(self._text)
