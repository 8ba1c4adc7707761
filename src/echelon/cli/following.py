"""Follow a run: print its output, wait for its end, and stop or cancel its jobs."""

import math
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from echelon.api.runs import current_job, find_verdict, submit_run
from echelon.api.trust import read_script
from echelon.cli import console
from echelon.clusters.base import Cluster
from echelon.core.jobs import Job, describe_job, is_job_id
from echelon.core.shell import LocalShell
from echelon.core.visible import in_one_line, is_redrawn, settled
from echelon.core.waiting import wait_until
from echelon.errors import EchelonError, NotFoundError, UnavailableError
from echelon.run.attempts import Attempt, attempts, claiming_next, find_output, outcome
from echelon.run.background_writer import AWAY
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.metrics import MetricEvent, StepLogged, render_progress
from echelon.run.rank_logs import Line, RunLogs, Tail, last_lines_start
from echelon.run.request import has_controller, read_spec
from echelon.run.verdict import render

_COLOURS = (36, 33, 32, 35, 34, 31)
_LABEL = re.compile(r" *(\d{1,9}): ")
"""The label that srun puts before a task's line."""
LOOK_S = 0.05
"""Seconds between two checks of the run's files."""
_ASK_S = 1.0
"""Seconds between two queries to a cluster."""
MOST_NODES = 32
"""Number of nodes whose telemetry is read for a short summary, so that it is quick."""
_BAR_S, _LINE_S = 0.2, 10.0
"""Seconds between two states of a rank's progress bar: in a terminal, and elsewhere."""
_CLAIMED_S = 150.0
"""Seconds that another command may take to submit the next attempt."""
_EAGER_S = 5.0
"""Seconds after a controller wrote its outcome in which every check also queries the cluster."""


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
    try:
        while True:
            job = _follow(run, cluster, screen)
            if not resubmit:
                return job
            if not _submit_next(run, cluster):
                _send_owed(run)
                return job
    except KeyboardInterrupt:
        console.note(f"{run.run_id} keeps running; stop it with: echelon stop {run.run_id}")
        raise


def _submit_next(run: RunDir, cluster: Cluster) -> bool:
    """Submit another attempt if the last one asked for it; tell whether it did."""
    last = attempts(run)[-1].number
    ended = outcome(run, last)
    if ended is None or ended.next != "wanted":
        return False
    with claiming_next(run, last) as ours:
        if not ours:  # another command waits for the run too, and submits it
            return wait_until(lambda: attempts(run)[-1].number > last, timeout_s=_CLAIMED_S)
        attempt = submit_run(run, cluster, os.environ, read_script(run, os.environ))
    console.note(f"{run.run_id} continues {describe_job(attempt.job_id)}")
    return True


def _send_owed(run: RunDir) -> None:
    """Send the notification of the run's end if the controller was killed before it could.

    Only commands that start the run's jobs do this; commands that read a run execute nothing of it.
    """
    if not any(run.attempts.glob("*/notify.json")):
        return
    from echelon.launch.controller.notify import PATIENCE_S, Notifier  # noqa: PLC0415

    with suppress(OSError, EchelonError):  # the run has its exit code; this is an extra
        spec = read_spec(run)
        notifier = Notifier(
            spec.notify, run=run, shell=LocalShell(), environ=os.environ, folder=spec.chdir
        )
        for wrong in notifier.send_owed(wait_s=PATIENCE_S):
            console.note(f"{run.run_id}: --notify: {wrong}")


def _follow(run: RunDir, cluster: Cluster, screen: "_Screen | None") -> Job:
    asked_s, ended_s, ended = -_ASK_S, -_EAGER_S, 0
    job, away = None, False
    while True:
        try:
            now_s = time.monotonic()
            count = sum(run.outcome(one.number).exists() for one in attempts(run))
            if count > ended:
                ended, ended_s = count, now_s
            due = now_s - asked_s >= _ASK_S or now_s - ended_s < _EAGER_S
            if job is None or due or not _distant(job):
                job, asked_s = current_job(run, cluster), now_s
            if screen:
                screen.show(over=job.over)
        except (OSError, UnavailableError) as error:
            if isinstance(error, OSError) and error.errno not in AWAY:
                raise
            if not away:  # the run itself may be fine
                console.note(f"waiting for the run's storage or cluster: {error}")
            away = True
            time.sleep(_ASK_S)
            continue
        if job.over:
            reason = f" ({job.reason})" if job.reason else ""
            console.note(f"{run.run_id}: {job.state}{reason}")
            if screen is None:  # otherwise the run's own output says why
                _tell_cause(run, job)
            _sum_up(run)
            return job
        time.sleep(LOOK_S)


def _tell_cause(run: RunDir, job: Job) -> None:
    """Print why a run failed, if that is known."""
    if job.state != "COMPLETED" and (verdict := find_verdict(run, job)):
        console.note(render(verdict, run=run.path))


def _sum_up(run: RunDir) -> None:
    """Print where the run's time went, and what to change, in a line or two."""
    from echelon.monitor.report import make_report, render_short  # noqa: PLC0415

    with suppress(Exception):  # the run has its exit code; this is an extra
        if text := render_short(make_report(run, most_nodes=MOST_NODES)):
            console.note(text)


def follow_to_the_end(run: RunDir, cluster: Cluster) -> Job:
    """Follow a run that belongs to this command: Ctrl-C stops it, a second one cancels it."""
    known = attempts(run)  # in case its directory is deleted meanwhile
    interrupted = False
    screen = _Screen(run, None)  # kept across Ctrl-C, so that no line is printed twice
    try:
        while True:
            try:
                job = _follow(run, cluster, screen)
            except KeyboardInterrupt:
                if interrupted:
                    cancel_all(run, cluster)
                else:
                    console.note("stopping; press Ctrl-C again to stop immediately")
                    stop_all(run, cluster, interrupt=True)
                interrupted = True
            else:
                if not interrupted and _submit_next(run, cluster):
                    continue
                _send_owed(run)
                # Callers expect the exit code of an interrupted command.
                asked = job.state == "CANCELLED" or job.exit_code == 128 + signal.SIGTERM
                stopped = interrupted and asked
                return replace(job, exit_code=128 + signal.SIGINT) if stopped else job
    except BaseException:
        with suppress(NotFoundError):  # the run directory was deleted
            cancel_all(run, cluster, known)
        raise


def stop_all(run: RunDir, cluster: Cluster, *, interrupt: bool = False) -> None:
    """Ask a run's jobs to stop, a waiting standby first: otherwise it would take over."""
    current = current_job(run, cluster)
    for attempt in reversed(attempts(run)):
        if is_job_id(attempt.job_id):
            cluster.stop(attempt.job_id, run_id=run.run_id, interrupt=interrupt)
        if attempt.job_id == current.id:
            return


def cancel_all(run: RunDir, cluster: Cluster, known: Sequence[Attempt] = ()) -> None:
    """Cancel a run's jobs, the last first: it may be waiting for the end of the one before."""
    for attempt in reversed(attempts(run) or known):
        if is_job_id(attempt.job_id):
            cluster.cancel(attempt.job_id, run_id=run.run_id)


def _distant(job: Job) -> bool:
    """Tell whether a query about a job goes to a cluster."""
    return not job.id.startswith("local:")


def exit_code(job: Job) -> int:
    """Return the exit code for a command that waited: the run's own, and 0 only if it completed."""
    return 0 if job.state == "COMPLETED" else job.exit_code or 1


def print_logs(
    run: RunDir, *, rank: int | None, raw: bool = False, tail: int | None = None
) -> bool:
    """Print the output of a run, or its last lines; return whether there was any."""
    return _Screen(run, rank, raw=raw, tail=tail).show(over=True)


@dataclass(frozen=True, slots=True, kw_only=True)
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
