"""Print a run's output, until its end."""

import math
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from echelon.api.waiting import carry_to_the_end, wait_for_run
from echelon.cli import console
from echelon.clusters.base import Cluster
from echelon.core.frozen import frozen
from echelon.core.jobs import Job
from echelon.core.visible import in_one_line, is_redrawn, settled
from echelon.run.attempts import attempts, find_output
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.metrics import MetricEvent, StepLogged, render_progress
from echelon.run.rank_logs import Line, RunLogs, Tail, last_lines_start
from echelon.run.request import has_controller

_COLOURS = (36, 33, 32, 35, 34, 31)
_LABEL = re.compile(r" *(\d{1,9}): ")
"""The label that srun puts before a task's line."""
_BAR_S, _LINE_S = 0.2, 10.0
"""Seconds between two states of a rank's progress bar: in a terminal, and elsewhere."""


def follow_run(
    run: RunDir,
    cluster: Cluster,
    *,
    show: bool,
    rank: int | None = None,
    resubmit: bool = False,
    raw: bool = False,
    tail: int | None = None,
    place: "Place | None" = None,
) -> Job:
    """Wait until a run ends, over all its jobs.

    Args:
        run: the run.
        cluster: where it runs.
        show: print its output.
        rank: print only this rank's output.
        resubmit: submit the next attempt when the run's own jobs cannot.
        raw: print control characters unchanged.
        tail: of what is there already, print only so many lines.
        place: where to begin, and who is told how far the output was printed.

    Returns:
        its last job.
    """
    screen = _Screen(run, rank, raw=raw, tail=tail, place=place) if show else None
    return wait_for_run(run, cluster, screen, resubmit=resubmit)


def follow_to_the_end(run: RunDir, cluster: Cluster) -> Job:
    """Follow a run that belongs to this command: Ctrl-C stops it, a second one cancels it."""
    return carry_to_the_end(run, cluster, _Screen(run, None))


def print_logs(
    run: RunDir, *, rank: int | None, raw: bool = False, tail: int | None = None
) -> bool:
    """Print the output of a run, or its last lines; return whether there was any."""
    return _Screen(run, rank, raw=raw, tail=tail).show(over=True)


@frozen
class Place:
    """How far a run's output was printed, for a reader whose connection may break."""

    tell: Callable[[Mapping[str, Mapping[str, int]]], None]
    """Called whenever everything up to a position was printed."""
    begin: Mapping[str, Mapping[str, int]] | None = None
    """The position to begin at."""


class _Screen:
    """Prints what a run writes, and remembers how far it has read."""

    def __init__(
        self,
        run: RunDir,
        rank: int | None,
        *,
        raw: bool = False,
        tail: int | None = None,
        place: Place | None = None,
    ) -> None:
        begin = place.begin if place else None
        self._run, self._rank, self._raw = run, rank, raw
        self._last = tail if begin is None else None
        self._logs = RunLogs(run.logs, rank=rank)
        self._jobs: dict[Path, Tail] = {}
        if begin is not None:
            self._logs.continue_from(begin["ranks"])
            self._jobs = {Path(p): Tail(Path(p), start=end) for p, end in begin["jobs"].items()}
        elif tail is not None:
            self._logs.skip(tail)
        self._bar = _Bar(run, self._logs)
        self._place = place

    def show(self, *, over: bool) -> bool:
        """Print what is new; return whether there was anything."""
        if over:
            self._bar.hide()
        parts = [self._show_jobs, self._show_ranks]
        if over and self._run.verdict.exists():
            # The job's output ends with why it failed: print it after the output of the ranks.
            parts.reverse()
        found = [part(over=over) for part in parts]
        self._last = None  # what comes from now on is printed in full
        if not over:
            self._bar.draw()
        if self._place:
            jobs = {str(path): tail.offset for path, tail in self._jobs.items()}
            self._place.tell({"ranks": self._logs.position(), "jobs": jobs})
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
                    start = 0 if self._last is None else last_lines_start(path, self._last)
                    self._jobs[path] = Tail(path, start=start)
                for _, text in self._jobs[path].read(over=over):
                    self._bar.hide()
                    found |= self._show_job(text, labelled=labelled)
        return found

    def _show_ranks(self, *, over: bool) -> bool:
        found = False
        # Lines without a recorded time are the newest, whatever our own clock says.
        lines: Iterable[Line] = self._logs.read(over=over, now_s=math.inf)
        if self._last is not None:
            lines = deque(lines, maxlen=self._last)
        for line in lines:
            self._bar.hide()
            self._print_labelled(line.rank, line.text)
            found = True
        if sys.stdout:  # None when it was closed (>&-)
            sys.stdout.flush()
        return found

    def _show_job(self, text: str, *, labelled: bool) -> bool:
        """Print a line of the job's output, as a rank's if srun has labelled it.

        Returns whether it was printed.
        """
        match = _LABEL.match(text) if labelled else None
        if not labelled and self._rank is None:
            console.note(settled(text))
        elif self._rank is None and match is None:
            self._print(text)
        elif match and self._rank in (None, int(match[1])):
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


class _Bar:
    """Training progress, in the last line of a terminal: what ranks report, or draw themselves.

    Where there is no terminal, what they draw is printed now and then.
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
            self._drawn, self._next_s = False, 0.0  # a rank's bar may have ended

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
