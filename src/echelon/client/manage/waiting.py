"""Wait for the end of a run, over all its jobs; stop and cancel them."""

import math
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from echelon.client.manage.run_status import current_job, find_verdict
from echelon.client.submit.queueing import queue_attempt
from echelon.client.submit.trust import read_script
from echelon.clusters.base import Cluster
from echelon.core.jobs import Job, describe_job, is_job_id
from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.errors import EchelonError, NotFoundError, TimedOutError, UnavailableError
from echelon.run.attempts import Attempt, attempts, claiming_next, outcome
from echelon.run.background_writer import AWAY
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
from echelon.run.verdict import render

LOOK_S = 0.05
"""Seconds between two checks of the run's files."""
_ASK_S = 1.0
"""Seconds between two queries to a cluster."""
_CLAIMED_S = 150.0
"""Seconds that another command may take to submit the next attempt."""
_EAGER_S = 5.0
"""Seconds after a controller wrote its outcome in which every check also queries the cluster."""


class Screen(Protocol):
    """Shows the output of a run."""

    def show(self, *, over: bool) -> bool:
        """Print what is new; return whether there was anything."""


def wait_for_run(
    run: RunDir,
    cluster: Cluster,
    screen: Screen | None = None,
    *,
    resubmit: bool = False,
    silent: bool = False,
    until_s: float = math.inf,
) -> Job:
    """Wait until a run ends, over all its jobs, and return the last one.

    Args:
        run: the run.
        cluster: where it runs.
        screen: shows its output meanwhile.
        resubmit: submit the next attempt when the run's own jobs cannot.
        silent: do not print how it ended.
        until_s: when to give up, on the monotonic clock.

    Raises:
        TimedOutError: it has not ended by then.
    """
    try:
        while True:
            job = _follow(run, cluster, screen, until_s)
            if not silent:
                _tell_end(run, job, shown=screen is not None)
            if not resubmit:
                return job
            if not submit_next(run, cluster):
                _send_owed(run)
                return job
    except KeyboardInterrupt:
        note(f"{run.run_id} keeps running; stop it with: echelon stop {run.run_id}")
        raise


def submit_next(run: RunDir, cluster: Cluster) -> bool:
    """Submit another attempt if the last one asked for it; tell whether it did."""
    known = attempts(run)
    if not known:  # it was never submitted
        return False
    last = known[-1].number
    ended = outcome(run, last)
    if ended is None or ended.next != "wanted":
        return False
    with claiming_next(run, last) as ours:
        if not ours:  # another command waits for the run too, and submits it
            return wait_until(lambda: attempts(run)[-1].number > last, timeout_s=_CLAIMED_S)
        attempt = queue_attempt(run, cluster, os.environ, read_script(run, os.environ))
    note(f"{run.run_id} continues {describe_job(attempt.job_id)}")
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
            note(f"{run.run_id}: --notify: {wrong}")


def _follow(
    run: RunDir,
    cluster: Cluster,
    screen: Screen | None,
    until_s: float = math.inf,
) -> Job:
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
                note(f"waiting for the run's storage or cluster: {error}")
            away = True
            _pause(_ASK_S, run, until_s)
            continue
        if job.over:
            return job
        _pause(LOOK_S, run, until_s)


def _pause(length_s: float, run: RunDir, until_s: float) -> None:
    if time.monotonic() >= until_s:
        raise TimedOutError(
            f"the run '{run.run_id}' has not ended in time",
            hint="it continues: wait again, or stop it",
        )
    time.sleep(length_s)


def _tell_end(run: RunDir, job: Job, *, shown: bool) -> None:
    """Print how a run ended."""
    reason = f" ({job.reason})" if job.reason else ""
    note(f"{run.run_id}: {job.state}{reason}")
    if not shown:  # otherwise the run's own output says why
        _tell_cause(run, job)
    _sum_up(run)


def _tell_cause(run: RunDir, job: Job) -> None:
    """Print why a run failed, if that is known."""
    if job.state != "COMPLETED" and (verdict := find_verdict(run, job)):
        note(render(verdict, run=run.path))


def _sum_up(run: RunDir) -> None:
    """Print where the run's time went, and what to change, in a line or two."""
    from echelon.monitor.reading import MOST_NODES  # noqa: PLC0415
    from echelon.monitor.report import make_report, render_short  # noqa: PLC0415

    with suppress(Exception):  # the run has its exit code; this is an extra
        if text := render_short(make_report(run, most_nodes=MOST_NODES)):
            note(text)


def carry_to_the_end(run: RunDir, cluster: Cluster, screen: Screen) -> Job:
    """Follow a run that belongs to this command: Ctrl-C stops it, a second one cancels it."""
    known = attempts(run)  # in case its directory is deleted meanwhile
    interrupted = False
    try:
        while True:
            try:
                job = _follow(run, cluster, screen)
            except KeyboardInterrupt:
                if interrupted:
                    cancel_all(run, cluster)
                else:
                    note("stopping; press Ctrl-C again to stop immediately")
                    stop_all(run, cluster, interrupt=True)
                interrupted = True
            else:
                _tell_end(run, job, shown=True)
                if not interrupted and submit_next(run, cluster):
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
