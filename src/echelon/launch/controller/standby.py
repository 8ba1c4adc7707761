"""Whether another job should continue a run, and whether a job that starts has anything to do.

How the next job gets into the queue is up to the backend (`launch/backends`).
"""

from echelon.core.frozen import frozen
from echelon.core.slurm import Slurm
from echelon.errors import UnavailableError
from echelon.launch.controller.failures import used_up
from echelon.run.attempts import (
    SKIPPED,
    Attempt,
    attempts,
    has_begun,
    is_orphaned,
    is_skipped,
    outcome,
)
from echelon.run.directory import RunDir
from echelon.run.history import History, newest_checkpoint
from echelon.run.verdict import Failure

PLANNED = frozenset({"time limit", "preemption", "maintenance"})
"""Planned stops, which cost no restart."""
RESUMABLE = PLANNED | {"cancelled"}
"""Stops after which the run can be resumed from its checkpoints."""
_STALLED = 2
"""Limit of attempts in a row without progress."""


def decide_hand_over(
    failure: Failure,
    history: History,
    *,
    mode: str,
    restarts: int | None,
    saved: int,
    progress: bool,
    nodes_are_why: bool,
) -> str:
    """Return why no other job should take over; empty if one should. Pure.

    Args:
        failure: what ended this attempt.
        history: of the run, including the failures of this attempt.
        mode: the request's `hand_over`.
        restarts: how many failures the run may have; None if none, as nobody asked for any.
        saved: the step of the newest checkpoint; -1 if there is none.
        progress: whether anything shows that this attempt made progress.
        nodes_are_why: whether other nodes would help: too few are left, or too few joined.
    """
    if mode == "never":
        return "handing over is disabled (--hand-over never)"
    stalled = 0 if progress else 1 + history.stalled
    if failure.cause in PLANNED:
        # Nodes may be taken away any number of times; a time limit comes every time.
        return _judge_limit(mode, saved, stalled) if failure.cause == "time limit" else ""
    if failure.cause == "cancelled":
        return "the run was told to stop"
    if not nodes_are_why:
        return "other nodes would not help"
    if len(history.failures) >= (restarts or 0):
        return used_up(restarts)
    return _without_progress(stalled, saved) if stalled > _STALLED else ""


def _judge_limit(mode: str, saved: int, stalled: int) -> str:
    if mode == "auto" and saved < 0:
        return (
            "no checkpoint was reported from which a next job could continue: have the script call "
            "echelon.saved(), or see --hand-over always"
        )
    return _without_progress(stalled, saved) if stalled >= _STALLED else ""


def _without_progress(jobs: int, saved: int) -> str:
    """Return that jobs achieved nothing, and what was looked for."""
    seen = "no new checkpoint" if saved >= 0 else "no checkpoint was reported, and no file written"
    return f"{jobs} jobs in a row made no progress: {seen}"


@frozen
class Objection:
    """Why an attempt must not start."""

    why: str
    state: str = ""
    """How the run ended, if no attempt has reported that."""


def find_objection(run: RunDir, own: Attempt, slurm: Slurm) -> Objection | None:
    """Return why an attempt must not start; None if it may.

    Slurm is asked whether an earlier one is over, unless its controller has recorded that.
    """
    for earlier in reversed([one for one in attempts(run) if one.number < own.number]):
        if own.job_id in (earlier.job_id, earlier.after):
            continue  # the same job, requeued, or the one that waits for our end
        ended = outcome(run, earlier.number)
        if ended and ended.state == SKIPPED:
            continue  # it had nothing to do
        if ended and not own.after:
            return None  # whoever submitted us knew about it
        if ended and not ended.next:
            return Objection(why=f"the run has ended: {ended.state}")
        try:
            job = slurm.job(earlier.job_id, run_id=run.run_id)
        except UnavailableError:
            if own.after == earlier.job_id:
                return None  # otherwise Slurm would not have started us
            raise
        if not job.over and not ended:
            return Objection(why=f"attempt {earlier.number}, job {earlier.job_id}, is {job.state}")
        # Even if its controller did not notice that, or too late.
        cancelled = job.state == "CANCELLED" and not is_orphaned(run, earlier.number)
        why = f"job {earlier.job_id} was cancelled"
        return Objection(why=why, state="CANCELLED") if own.after and cancelled else None
    return None


def find_exhaustion(
    run: RunDir, own: Attempt, history: History, *, restarts: int | None
) -> Objection | None:
    """Return why an attempt is one too many; None if it is not.

    A controller that is killed decides nothing and leaves its standby in the queue. So that this
    does not repeat for ever, the standby checks the budget of restarts itself.
    """
    begun = [one for one in attempts(run) if one.number < own.number and has_begun(run, one)]
    before = next((one for one in reversed(begun) if not is_skipped(run, one)), None)
    if before is None or outcome(run, before.number) is not None:
        return None
    if not own.after and own.job_id != before.job_id:
        return None  # a user submitted it
    if len(history.failures) > (restarts or 0):
        why = f"attempt {before.number} exited without reporting an outcome; {used_up(restarts)}"
        return Objection(why=why, state="FAILED")
    if history.stalled > _STALLED:
        why = _without_progress(history.stalled, newest_checkpoint(run))
        return Objection(why=why, state="FAILED")
    return None
