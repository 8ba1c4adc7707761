"""How a run outlives its jobs: the next attempt waits in the queue while this one runs.

Slurm starts a job that waits for another's failure as soon as that has gone, also when the host of
its batch script dies and nobody is left to submit anything; and drops it when the other completes.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from echelon.core.jobs import Job
from echelon.core.slurm import OVER, Slurm
from echelon.errors import EchelonError, UnavailableError, UsageError
from echelon.run.attempts import (
    SKIPPED,
    Attempt,
    attempts,
    has_begun,
    is_orphaned,
    is_skipped,
    outcome,
    submit_attempt,
)
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.verdict import Failure

PLANNED = frozenset({"time limit", "preemption", "maintenance"})
"""Stops that are nobody's fault, and cost no restart."""
RESUMABLE = PLANNED | {"cancelled"}
"""Stops after which what was saved is as good as it was."""
_STALLED = 2
"""So many attempts in a row without anything saved are enough."""


def decide_hand_over(
    failure: Failure,
    history: History,
    *,
    mode: str,
    restarts: int,
    saved: int,
    progress: bool,
    nodes_are_why: bool,
) -> str:
    """Return why no other job should take over; empty when one should. Pure.

    Args:
        failure: what ended this attempt.
        history: what came before it, its own failures included.
        mode: the request's `hand_over`.
        restarts: how many failures the run may have.
        saved: the step of the newest checkpoint; -1 when there is none.
        progress: whether this attempt has saved anything new.
        nodes_are_why: whether other nodes would help: too few are left, or too few came.
    """
    if mode == "never":
        return "handing over is switched off"
    stalled = 0 if progress else 1 + history.stalled
    if failure.cause in PLANNED:
        # Nobody knows how often nodes will be taken away; a limit comes every time.
        return _judge_limit(mode, saved, stalled) if failure.cause == "time limit" else ""
    if failure.cause == "cancelled":
        return "somebody wanted it to stop"
    if not nodes_are_why:
        return "other nodes would not mend it"
    if len(history.failures) >= restarts:
        return _used_up(restarts)
    return f"{stalled} jobs in a row have saved nothing new" if stalled > _STALLED else ""


def _judge_limit(mode: str, saved: int, stalled: int) -> str:
    if mode == "auto" and saved < 0:
        return "nothing is saved that a next job could go on from; see --hand-over always"
    if saved >= 0 and stalled >= _STALLED:
        return f"{stalled} jobs in a row have reached their limit without saving anything new"
    return ""


class Standby:
    """The job that goes on when ours ends before its work is done. Its methods wait for Slurm."""

    def __init__(
        self,
        slurm: Slurm,
        run: RunDir,
        *,
        job_id: str,
        environ: Mapping[str, str],
        script: bytes,
        quiet: bool = False,
    ) -> None:
        """Prepare one.

        Args:
            slurm: who queues it.
            run: the run.
            job_id: ours.
            environ: the variables with which our own job was submitted.
            script: the one that Slurm keeps of our own job: the run's folder may hold another.
            quiet: whether nobody shall get mail about it as long as it waits.
        """
        self._slurm, self._run, self._job_id, self._environ = slurm, run, job_id, environ
        self._script, self._quiet = script, quiet
        self.attempt: Attempt | None = None

    def submit(self, exclude: str = "") -> Attempt:
        """Queue it.

        Raises:
            UsageError: Slurm does not let us, or nobody knows our own script.
            UnavailableError: slurmctld is away, or there is no sbatch on this node.
        """
        if not self._script:
            raise UsageError(
                "the script of this job cannot be read",
                hint=f"continue by hand: echelon resume {self._run.run_id}",
            )

        def submit(number: int) -> str:
            return self._slurm.submit(
                self._run.script,
                content=self._script,
                run_id=self._run.run_id,
                attempt=number,
                environ=self._environ,
                exclude=exclude,
                after=self._job_id,
            )

        self.attempt = submit_attempt(self._run, submit, self._release, after=self._job_id)
        if self._quiet:
            # Not as an option of sbatch, which adds to what the script says.
            with contextlib.suppress(EchelonError):
                self._slurm.set_mail(self.attempt.job_id, "NONE")
        return self.attempt

    def speak(self) -> None:
        """Have its end told from now on, if it was silent."""
        if self._quiet and self.attempt:
            with contextlib.suppress(EchelonError):
                self._slurm.set_mail(self.attempt.job_id, OVER)

    def _release(self, job_id: str) -> Job:
        """Return it as it is in the queue; `--hold` was for the first job, and nobody is here."""
        job = self._slurm.job(job_id, run_id=self._run.run_id)
        if job.reason == "JobHeldUser":
            self._slurm.ask(["scontrol", "release", job_id])
        return job

    def exclude(self, hosts: str) -> None:
        """Have it wait for other nodes than these."""
        if self.attempt:
            self._slurm.ask(
                ["scontrol", "update", f"JobId={self.attempt.job_id}", f"ExcNodeList={hosts}"]
            )

    def is_gone(self) -> bool:
        """Tell whether somebody has taken it out of the queue."""
        if not self.attempt:
            return False
        try:
            return self._slurm.job(self.attempt.job_id, run_id=self._run.run_id).over
        except EchelonError:
            return False  # nobody has said so

    def withdraw(self) -> None:
        """Take it out of the queue: the run is at its end."""
        if self.attempt:
            with contextlib.suppress(EchelonError):  # it will see by itself that it is not wanted
                self._slurm.end(self.attempt.job_id, self._run.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why an attempt must not begin."""

    why: str
    state: str = ""
    """How the run has ended, where nobody has said that before."""


def find_objection(run: RunDir, own: Attempt, slurm: Slurm) -> Objection | None:
    """Return why an attempt must not begin; None when it may.

    That an earlier one is over is asked of Slurm, where its controller has not said so itself.
    """
    for earlier in reversed([one for one in attempts(run) if one.number < own.number]):
        if own.job_id in (earlier.job_id, earlier.after):
            continue  # the same job, queued again, or the one that waits for our own end
        ended = outcome(run, earlier.number)
        if ended and ended.state == SKIPPED:
            continue  # it had no business here
        if ended and not own.after:
            return None  # whoever submitted us knew
        if ended and not ended.next:
            return Objection(why=f"the run is at its end: {ended.state}")
        try:
            job = slurm.job(earlier.job_id, run_id=run.run_id)
        except UnavailableError:
            if own.after == earlier.job_id:
                return None  # Slurm would not have started us
            raise
        if not job.over and not ended:
            return Objection(why=f"attempt {earlier.number}, job {earlier.job_id}, is {job.state}")
        # Also when its controller has not heard of that, or too late.
        cancelled = job.state == "CANCELLED" and not is_orphaned(run, earlier.number)
        why = f"job {earlier.job_id} was cancelled"
        return Objection(why=why, state="CANCELLED") if own.after and cancelled else None
    return None


def find_exhaustion(
    run: RunDir, own: Attempt, history: History, *, restarts: int
) -> Objection | None:
    """Return why an attempt is one too many; None when it is not.

    A controller that is killed decides nothing, and leaves its standby in the queue. If that goes
    on for ever, so would the run: whoever takes over from such a one looks at the budget itself.
    """
    begun = [one for one in attempts(run) if one.number < own.number and has_begun(run, one)]
    before = next((one for one in reversed(begun) if not is_skipped(run, one)), None)
    if before is None or outcome(run, before.number) is not None:
        return None
    if not own.after and own.job_id != before.job_id:
        return None  # somebody wants it
    if len(history.failures) > restarts:
        why = f"attempt {before.number} has ended without a word; {_used_up(restarts)}"
        return Objection(why=why, state="FAILED")
    if history.stalled > _STALLED:
        why = f"{history.stalled} jobs in a row have saved nothing new"
        return Objection(why=why, state="FAILED")
    return None


def _used_up(restarts: int) -> str:
    return f"all {restarts} restarts are used up" if restarts else "restarts are switched off"
