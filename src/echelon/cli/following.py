"""Watching a run from outside: what it writes, and how it ends. Files, and the cluster's word."""

import math
import os
import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.cli import console
from echelon.core.jobs import is_job_id
from echelon.core.progressbar import Standing, render_standing
from echelon.core.visible import settled
from echelon.errors import EchelonError, NotFoundError, UnavailableError
from echelon.run.background_writer import AWAY
from echelon.run.event_log import EventReader
from echelon.run.metrics import MetricEvent, StepLogged
from echelon.run.rank_logs import RunLogs, Tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from echelon.clusters.base import Cluster
    from echelon.core.jobs import Job
    from echelon.run.attempts import Attempt
    from echelon.run.directory import RunDir

_COLOURS = (36, 33, 32, 35, 34, 31)
_LABEL = re.compile(r" *(\d{1,9}): ")
"""What srun puts before a task's line."""
_LOOK_S = 0.05
"""How often files are looked at."""
_ASK_S = 1.0
"""How often Slurm is asked."""
MOST_NODES = 32
"""Of how many nodes telemetry is read for a line or two: nobody waits long for that."""
_EAGER_S = 5.0
"""For how long it is asked all the time once a controller has left its outcome."""


def follow_run(
    run: "RunDir",
    cluster: "Cluster",
    *,
    show: bool,
    rank: int | None = None,
    resubmit: bool = False,
    raw: bool = False,
) -> "Job":
    """Wait for a run to be over, whatever jobs it takes, showing what it writes.

    Args:
        run: which.
        cluster: where it is.
        show: whether to print what it writes.
        rank: the one rank to show.
        resubmit: whether to queue the next attempt where its own jobs may not.
        raw: whether control characters are printed as they are.

    Returns:
        its last job.
    """
    screen = _Screen(run, rank, raw=raw) if show else None
    try:
        while True:
            job = _follow(run, cluster, screen)
            if not resubmit:
                return job
            if not _go_on(run, cluster):
                _send_owed(run)
                return job
    except KeyboardInterrupt:
        console.note(f"{run.run_id} goes on by itself; end it with: echelon stop {run.run_id}")
        raise


def _go_on(run: "RunDir", cluster: "Cluster") -> bool:
    """Queue another attempt if the last one has asked for that; tell whether there is one."""
    from echelon.api.runs import submit_run  # noqa: PLC0415
    from echelon.api.trust import read_script  # noqa: PLC0415
    from echelon.run.attempts import attempts, outcome  # noqa: PLC0415

    ended = outcome(run, attempts(run)[-1].number)
    if ended is None or ended.next != "wanted":
        return False
    attempt = submit_run(run, cluster, os.environ, read_script(run, os.environ))
    console.note(f"{run.run_id} goes on as job {attempt.job_id}")
    return True


def _send_owed(run: "RunDir") -> None:
    """Send the notification of the run's end if its controller was killed before it could.

    Only commands that started the run's jobs do so: those that read a run execute nothing of it.
    """
    if not any(run.attempts.glob("*/notify.json")):
        return
    from echelon.core.shell import LocalShell  # noqa: PLC0415
    from echelon.launch.controller.notify import PATIENCE_S, Notifier  # noqa: PLC0415
    from echelon.run.request import read_spec  # noqa: PLC0415

    with suppress(OSError, EchelonError):  # it is over, and has its exit code; this is an extra
        spec = read_spec(run)
        notifier = Notifier(
            spec.notify, run=run, shell=LocalShell(), environ=os.environ, folder=spec.chdir
        )
        for wrong in notifier.send_owed(wait_s=PATIENCE_S):
            console.note(f"{run.run_id}: the command of --notify: {wrong}")


def _follow(run: "RunDir", cluster: "Cluster", screen: "_Screen | None") -> "Job":
    from echelon.api.runs import current_job  # noqa: PLC0415
    from echelon.run.attempts import attempts  # noqa: PLC0415

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
            if not away:  # the run goes on without us: no reason to end it
                console.note(f"waiting for the run's storage, or its cluster: {error}")
            away = True
            time.sleep(_ASK_S)
            continue
        if job.over:
            reason = f" ({job.reason})" if job.reason else ""
            console.note(f"{run.run_id}: {job.state}{reason}")
            _sum_up(run)
            return job
        time.sleep(_LOOK_S)


def _sum_up(run: "RunDir") -> None:
    """Say what the run's time went to, and what to change, in a line or two."""
    from echelon.monitor.report import make_report, render_short  # noqa: PLC0415

    with suppress(Exception):  # it is over, and has its exit code; this is an extra
        if text := render_short(make_report(run, most_nodes=MOST_NODES)):
            console.note(text)


def follow_to_the_end(run: "RunDir", cluster: "Cluster") -> "Job":
    """Follow a run that belongs to this command: Ctrl-C stops it, and a second one at once."""
    from echelon.run.attempts import attempts  # noqa: PLC0415

    known = attempts(run)  # should its directory be deleted while we are here
    interrupted = False
    screen = _Screen(run, None)  # one for all: what was shown before Ctrl-C is not shown again
    try:
        while True:
            try:
                job = _follow(run, cluster, screen)
            except KeyboardInterrupt:
                if interrupted:
                    cancel_all(run, cluster)
                else:
                    console.note("stopping; again to stop at once")
                    stop_all(run, cluster)
                interrupted = True
            else:
                if not interrupted and _go_on(run, cluster):
                    continue
                _send_owed(run)
                # Whoever calls us expects what any interrupted command returns.
                asked = job.state == "CANCELLED" or job.exit_code == 128 + signal.SIGTERM
                stopped = interrupted and asked
                return replace(job, exit_code=128 + signal.SIGINT) if stopped else job
    except BaseException:
        with suppress(NotFoundError):  # its directory is gone, which is why we are here
            cancel_all(run, cluster, known)
        raise


def stop_all(run: "RunDir", cluster: "Cluster") -> None:
    """Ask a run's job to stop, and first the one that waits: it might go on meanwhile."""
    from echelon.api.runs import current_job  # noqa: PLC0415
    from echelon.run.attempts import attempts  # noqa: PLC0415

    current = current_job(run, cluster)
    for attempt in reversed(attempts(run)):
        if is_job_id(attempt.job_id):
            cluster.stop(attempt.job_id, run_id=run.run_id)
        if attempt.job_id == current.id:
            return


def cancel_all(run: "RunDir", cluster: "Cluster", known: "Sequence[Attempt]" = ()) -> None:
    """End a run's jobs, the last first: it may wait for the end of the one before."""
    from echelon.run.attempts import attempts  # noqa: PLC0415

    for attempt in reversed(attempts(run) or known):
        if is_job_id(attempt.job_id):
            cluster.cancel(attempt.job_id, run_id=run.run_id)


def _distant(job: "Job") -> bool:
    """Tell whether asking about a job costs somebody else's time."""
    return not job.id.startswith("local:")


def exit_code(job: "Job") -> int:
    """Return the code for whoever waits: the run's own, never 0 unless it completed."""
    return 0 if job.state == "COMPLETED" else job.exit_code or 1


def print_logs(run: "RunDir", *, rank: int | None, raw: bool = False) -> bool:
    """Print all that a run has written; return whether there was anything."""
    return _Screen(run, rank, raw=raw).show(over=True)


class _Screen:
    """Shows what a run writes, and knows how far it has got."""

    def __init__(self, run: "RunDir", rank: int | None, *, raw: bool = False) -> None:
        self._run, self._rank, self._raw = run, rank, raw
        self._logs = RunLogs(run.logs, rank=rank)
        self._jobs: dict[Path, Tail] = {}
        self._bar = _Bar(run)

    def show(self, *, over: bool) -> bool:
        """Show what has come since the last time; return whether anything has."""
        if over:
            self._bar.hide()
        parts = [self._show_jobs, self._show_ranks]
        if over and self._run.verdict.exists():
            # The job's last word is why it failed: it stands below what ranks say of each other.
            parts.reverse()
        found = [part(over=over) for part in parts]
        if not over:
            self._bar.draw()
        return any(found)

    def _show_jobs(self, *, over: bool) -> bool:
        """Show what the jobs themselves have written: what their controllers say."""
        from echelon.run.attempts import attempts, find_output  # noqa: PLC0415

        found = False
        # Only the launcher writes ranks' logs; without it srun labels its tasks' lines.
        labelled = not self._run.launcher.exists()
        for attempt in attempts(self._run):
            path = find_output(self._run, attempt)
            if attempt.output and path.is_file():
                for _, text in self._jobs.setdefault(path, Tail(path)).read(over=over):
                    self._bar.hide()
                    found |= self._show_job(text, labelled=labelled)
        return found

    def _show_ranks(self, *, over: bool) -> bool:
        found = False
        # Lines that nobody has timed yet are the newest, whatever our own clock says.
        for line in self._logs.read(over=over, now_s=math.inf):
            self._bar.hide()
            self._print_labelled(line.rank, line.text)
            found = True
        if sys.stdout:  # None when it was closed (>&-)
            sys.stdout.flush()
        return found

    def _show_job(self, text: str, *, labelled: bool) -> bool:
        """Print a line of the job's output: a rank's where srun has labelled it, else its own.

        Returns whether it was one that is wanted.
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
        """Print `3: text`, coloured by rank in a terminal."""
        label = f"{rank}: "
        if console.is_terminal():
            label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
        self._print(text, label)

    def _print(self, text: str, label: str = "") -> None:
        if self._raw:
            console.print_raw(label + text)
        else:
            console.print_result(label + settled(text))


class _Bar:
    """How far a run's training is, in the last line of a terminal."""

    def __init__(self, run: "RunDir") -> None:
        watched = sys.stderr and sys.stderr.isatty()
        self._metrics = EventReader(run.metrics, MetricEvent) if watched else None
        self._text, self._drawn = "", False

    def hide(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False

    def draw(self) -> None:
        if self._metrics is None:
            return
        for record in self._metrics.read():
            if isinstance(record.event, StepLogged):
                self._text, self._drawn = render_standing(_standing(record.event), bar=True), False
        if self._text and not self._drawn:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{self._text[:width]}\x1b[K")
            sys.stderr.flush()
            self._drawn = True


def _standing(event: StepLogged) -> Standing:
    """Return how far a training is; events of other versions may lack fields."""
    return Standing(
        epoch=event.epoch + 1,
        epochs=event.epochs or 1,
        done=event.done,
        length=event.length or 1,
        rate=event.metrics.get("rate", 0.0),
        left_s=event.left_s,
        loss=event.metrics.get("loss", math.nan),
        unit="batches" if event.unit == "batches" else "samples",
    )
