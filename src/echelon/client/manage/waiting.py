"""Waits for the end of a run over all its jobs, and stops or cancels these jobs."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from echelon.client.manage.run_status import current_job, find_verdict
from echelon.client.submit.trust import read_script
from echelon.clusters.base import Cluster, queue_attempt
from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import LOCAL, Job, describe_job, is_job_id
from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.core.waiting import CLOCK, Clock, patient, wait_for, wait_until
from echelon.errors import EchelonError, MissingProgramError, NotFoundError, UnavailableError
from echelon.run.attempts import STOPPING, Attempt, attempts, claiming_next, outcome
from echelon.run.background_writer import AWAY
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
from echelon.run.verdict import render

R = TypeVar("R")
LOOK_S = 0.05
"""Seconds between two checks of the run's files."""
_ASK_S = 1.0
"""Seconds between two queries to a cluster."""
_CLAIMED_S = 150.0
"""Seconds that another command may take to submit the next attempt."""
_EAGER_S = 5.0
"""Seconds after a controller wrote its outcome in which every check also queries the cluster."""


# --- watching a run --------------------------------------------------------------------------


class Outage:
    """Waits while storage or a cluster does not respond; the runs may not be affected."""

    def __init__(self) -> None:
        self._noted = False

    def succeed(self) -> None:
        """Do nothing: only the first outage is reported."""

    def pause_s(self, error: EchelonError | OSError) -> float:
        """Return how long to wait before the next query; raise an error of another kind."""
        is_missing = isinstance(error, MissingProgramError)  # such as scontrol: it stays missing
        is_away = isinstance(error, UnavailableError) and not is_missing
        if not is_away and not (isinstance(error, OSError) and error.errno in AWAY):
            raise error
        if not self._noted:
            note(f"waiting for the run's storage or cluster: {error}")
        self._noted = True
        return _ASK_S


class Screen(Protocol):
    """Shows the output of a run."""

    def show(self, *, over: bool) -> bool:
        """Print new output; return whether there was any."""


class RunWatch:
    """Detects the end of a run's job; it checks the run's files more often than the cluster."""

    def __init__(
        self, run: RunDir, cluster: Cluster, screen: Screen | None = None, clock: Clock = CLOCK
    ) -> None:
        self._run, self.cluster, self._screen, self._clock = run, cluster, screen, clock
        self._job: Job | None = None
        self._asked_s = self._ended_s = clock.now_s() - max(_ASK_S, _EAGER_S)
        self._ended = 0

    def look(self) -> Job | None:
        """Return the current job once it has ended."""
        job = self._find()
        if not job.over:
            return None
        self._job = None  # the run may continue in another job
        return job

    def _find(self) -> Job:
        now_s = self._clock.now_s()
        count = sum(self._run.outcome(one.number).exists() for one in attempts(self._run))
        if count > self._ended:
            self._ended, self._ended_s = count, now_s
        due = now_s - self._asked_s >= _ASK_S or now_s - self._ended_s < _EAGER_S
        if due or self._job is None or self._job.id.startswith(LOCAL):  # a local query is cheap
            self._job, self._asked_s = current_job(self._run, self.cluster), now_s
        if self._screen:
            self._screen.show(over=self._job.over)
        return self._job


def submit_next(run: RunDir, cluster: Cluster) -> bool:
    """Submit another attempt if the last one requested it; return whether there is a new one."""
    known = attempts(run)
    if not known:  # the run was never submitted
        return False
    last = known[-1].number
    ended = outcome(run, last)
    if ended is None or ended.next != "wanted":
        return False
    with claiming_next(run, last) as ours:
        if not ours:  # another command that waits for the run submits the attempt
            return wait_until(lambda: attempts(run)[-1].number > last, timeout_s=_CLAIMED_S)
        attempt = queue_attempt(run, cluster, os.environ, read_script(run, os.environ))
    note(f"{run.run_id} continues {describe_job(attempt.job_id)}")
    return True


def send_owed(run: RunDir) -> None:
    """Send the notification of the run's end if the controller was killed before it sent it.

    Only commands that start the run's jobs do this; commands that read a run execute none of its
    programs.
    """
    if not any(run.attempts.glob("*/notify.json")):
        return
    from echelon.launch.controller.notify import PATIENCE_S, Notifier  # noqa: PLC0415

    with suppress(OSError, EchelonError):  # a missing notification does not fail the command
        spec = read_spec(run)
        notifier = Notifier(
            spec.notify, run=run, shell=LocalShell(), environ=os.environ, folder=spec.chdir
        )
        for problem in notifier.send_owed(wait_s=PATIENCE_S):
            note(f"{run.run_id}: --notify: {problem}")


# --- waiting ---------------------------------------------------------------------------------


def wait_for_run(
    run: RunDir,
    cluster: Cluster,
    screen: Screen | None = None,
    *,
    resubmit: bool = False,
    clock: Clock = CLOCK,
) -> Job:
    """Wait until a run ends, over all its jobs; print its final state, and return the last job.

    Args:
        run: the run.
        cluster: where the run was started.
        screen: shows the run's output meanwhile.
        resubmit: submit the next attempt if the run's own jobs could not.
        clock: the clock.
    """
    look = patient(RunWatch(run, cluster, screen, clock).look, Outage(), clock)
    while True:
        job = wait_for(look, every_s=LOOK_S, clock=clock)
        _note_end(run, job, shown=screen is not None)
        if not resubmit:
            return job
        if not submit_next(run, cluster):
            send_owed(run)
            return job


def wait_for_own_run(
    run: RunDir, cluster: Cluster, screen: Screen | None, clock: Clock = CLOCK
) -> Job:
    """Wait for a run that belongs to this command: Ctrl-C stops it, a second one cancels it."""
    known = attempts(run)  # the run directory may be deleted meanwhile

    def wait(interrupted: bool) -> Job:
        job = wait_for_run(run, cluster, screen, resubmit=not interrupted, clock=clock)
        if not interrupted:
            return job
        send_owed(run)
        # Callers expect the exit code of an interrupted command.
        stopped = job.state == "CANCELLED" or job.exit_code == 128 + signal.SIGTERM
        return replace(job, exit_code=128 + signal.SIGINT) if stopped else job

    def end(now: bool) -> None:
        if not now:
            stop_all(run, cluster, interrupt=True)
            return
        with suppress(NotFoundError):  # the run directory was deleted
            cancel_all(run, cluster, known)

    return wait_or_end(wait, end)


def wait_or_end(wait: Callable[[bool], R], end: Callable[[bool], None]) -> R:
    """Wait for runs that belong to this command, and end them if the command is interrupted.

    Args:
        wait: waits, and returns the result; its argument is whether Ctrl-C was pressed before.
        end: ends the runs, immediately if its argument is true. The first Ctrl-C calls it with
            False, a second one and any other exception with True.
    """
    interrupted = False
    try:
        while True:
            try:
                return wait(interrupted)
            except KeyboardInterrupt:
                if not interrupted:
                    note("stopping; press Ctrl-C again to stop immediately")
                end(interrupted)
                interrupted = True
    except BaseException:
        end(True)
        raise


@contextmanager
def keeping_run(run_id: str, option: str = "") -> Iterator[None]:
    """Print how to stop a run if Ctrl-C ends only the command that waits for it.

    `option` names the run's host.
    """
    try:
        yield
    except KeyboardInterrupt:
        command = " ".join(filter(None, ("echelon stop", option, run_id)))
        note(f"{run_id} keeps running; stop it with: {command}")
        raise


def _note_end(run: RunDir, job: Job, *, shown: bool) -> None:
    """Print a run's final state, and the cause of a failure unless the output was shown."""
    note(f"{run.run_id}: {job.state}{f' ({job.reason})' if job.reason else ''}")
    if not shown and job.state != "COMPLETED" and (verdict := find_verdict(run, job)):
        note(render(verdict, run=run.path))
    _note_report(run)


def _note_report(run: RunDir) -> None:
    """Print a short report on how the run spent its time."""
    from echelon.monitor.reading import MOST_NODES  # noqa: PLC0415
    from echelon.monitor.report import make_report, render_short  # noqa: PLC0415

    with suppress(Exception):  # a failed report does not fail the command
        if text := render_short(make_report(run, most_nodes=MOST_NODES)):
            note(text)


# --- ending ----------------------------------------------------------------------------------


def stop_all(run: RunDir, cluster: Cluster, *, interrupt: bool = False) -> None:
    """Request that a run's jobs stop, the standby first, because it would take over."""
    current = current_job(run, cluster)
    for attempt in reversed(attempts(run)):
        if attempt.within:
            _stop_step(run, attempt, "interrupt" if interrupt else "stop")
        elif is_job_id(attempt.job_id):
            cluster.stop(attempt.job_id, run_id=run.run_id, interrupt=interrupt)
        if attempt.job_id == current.id:
            return


def cancel_all(run: RunDir, cluster: Cluster, known: Sequence[Attempt] = ()) -> None:
    """Cancel a run's jobs, the last one first, because it may wait for the end of another."""
    for attempt in reversed(attempts(run) or known):
        if attempt.within:
            _stop_step(run, attempt, "cancel")
        elif is_job_id(attempt.job_id):
            cluster.cancel(attempt.job_id, run_id=run.run_id)


def _stop_step(run: RunDir, attempt: Attempt, how: str) -> None:
    """Ask the controller of a step to stop: its job is that of other steps too."""
    if outcome(run, attempt.number) is None:
        write_atomic(run.attempt(attempt.number) / STOPPING, f"{how}\n")


def exit_code(job: Job) -> int:
    """Return the exit code for a command that waited: the run's own, and 0 only if it completed."""
    return 0 if job.state == "COMPLETED" else job.exit_code or 1
