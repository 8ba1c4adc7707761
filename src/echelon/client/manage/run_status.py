"""The status of a run: its current job, and why it failed."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.core.jobs import RUNNING, WAITING, Job, is_job_id
from echelon.core.records import open_regular
from echelon.errors import NotFoundError
from echelon.run.attempts import (
    Attempt,
    attempts,
    find_output,
    find_unreadable,
    has_begun,
    is_skipped,
    outcome,
)
from echelon.run.directory import RunDir

if TYPE_CHECKING:
    from echelon.clusters.base import Jobs
    from echelon.run.verdict import Verdict

_TAIL = 4096
"""Bytes at the end of a job's output that are searched for its last line."""
_CAUSES = {
    "TIMEOUT": ("time limit", "the job reached its time limit"),
    "PREEMPTED": ("preemption", "another job took the nodes"),
    "NODE_FAIL": ("lost node", "a node of the job failed"),
    "OUT_OF_MEMORY": ("out of memory", "Slurm ended the job because it was out of memory"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
}
"""Slurm states that explain a failure better than the job's own report: cause and message."""


def current_job(run: RunDir, cluster: "Jobs", attempted: Sequence[Attempt] | None = None) -> Job:
    """Return the job of the current attempt: the active attempt, or else the last one.

    `attempted` are the run's attempts, if the caller has read them.

    Raises:
        NotFoundError: the run directory was deleted.
    """
    if not run.path.is_dir():
        raise NotFoundError(
            f"the run directory was deleted: {run.path}",
            hint="check for remaining jobs: squeue --me",
        )
    attempted = attempts(run) if attempted is None else attempted
    if why := find_unreadable(run, attempted):  # the unreadable attempt may have completed the run
        return Job(id="", state="UNKNOWN", reason=why)
    known = [one for one in attempted if not is_skipped(run, one)]
    if not known:
        return Job(id="", state="UNSUBMITTED", reason="created, but never submitted")
    last = _job_of(run, known[-1], cluster)
    if not known[-1].after or has_begun(run, known[-1]) or last.state in RUNNING:
        return last
    # A standby is current once the job that it waits for has ended without completing the run.
    before = _job_of(run, known[-2], cluster) if known[1:] else last
    return last if before.over and before.state != "COMPLETED" and not last.over else before


def _job_of(run: RunDir, attempt: Attempt, cluster: "Jobs") -> Job:
    """Return an attempt's job, with the controller's outcome if the cluster knows less.

    The cluster may have forgotten the job, and Slurm reports a stopped job as failed.
    """
    if not is_job_id(attempt.job_id):
        what = f"job.json of attempt {attempt.number} has no valid job id"
        return Job(id=attempt.job_id, state="UNKNOWN", reason=what)
    if attempt.within:
        return step_job(run, attempt, _holding_job(run, attempt, cluster))
    job = cluster.job(attempt.job_id, run_id=run.run_id)
    ended = outcome(run, attempt.number) if job.state in ("UNKNOWN", "FAILED") else None
    if ended is None or (job.state == "FAILED" and ended.state != "CANCELLED"):
        return job
    return replace(job, state=ended.state, exit_code=ended.exit_code, reason="")


def _holding_job(run: RunDir, attempt: Attempt, cluster: "Jobs") -> Job:
    """Return the current job of the allocation that an attempt is a step of."""
    # A file may contain anything, but the holder is beside the run.
    holder = RunDir(path=run.path.parent / attempt.within)
    if attempt.within != ".." and holder.path.parent == run.path.parent and holder.path.is_dir():
        return current_job(holder, cluster)
    return Job(id=attempt.job_id, state="UNKNOWN", reason=f"no '{attempt.within}' beside the run")


def step_job(run: RunDir, attempt: Attempt | None, holder: Job) -> Job:
    """Return the job of a step, given the one that holds its allocation now. Pure but for files.

    Args:
        run: the run.
        attempt: its last attempt; None if it was never started.
        holder: the job that holds the allocation.
    """
    ended = outcome(run, attempt.number) if attempt else None
    if attempt and ended and (not ended.next or holder.over):
        return Job(id=attempt.job_id, state=ended.state, exit_code=ended.exit_code)
    if not holder.over:
        same = attempt is not None and attempt.job_id == holder.id and ended is None
        if (same and attempt and has_begun(run, attempt)) or holder.state in WAITING:
            return holder
        return replace(holder, state="PENDING", reason="it waits for a slot")
    if attempt is None:
        return Job(id="", state="UNSUBMITTED", reason="never started")
    if holder.state == "COMPLETED":
        what = f"{attempt.within} ended without it"
        return replace(holder, state="FAILED", exit_code=1, reason=what)
    return holder


def find_verdict(run: RunDir, job: Job) -> "Verdict | None":
    """Return why a run failed; None if it has not."""
    from echelon.run.verdict import Failure, judge  # noqa: PLC0415  `current_job` does not need it

    if job.state == "COMPLETED" or job.state in WAITING:
        return None  # a waiting job will try again
    own = _read_verdict(run)
    cause, message = _CAUSES.get(job.state, ("", ""))
    guessed = own is not None and own.failure.cause in {"cancelled", "preemption"} - {cause}
    if cause and (own is None or guessed):
        return judge([Failure(cause=cause, message=message, exit_code=job.exit_code or 1)])
    if own is not None or not job.over:
        return own
    reason = f" ({job.reason})" if job.reason else ""
    message = f"the job is {job.state}{reason}, and its controller reported no outcome"
    if line := _last_line(run):
        message += f"; the job's last output was: {line}"
    return judge([Failure(cause="exit", message=message, exit_code=job.exit_code or 1)])


def _last_line(run: RunDir) -> str:
    """Return the last line that the newest job printed; empty if there is none."""
    found = attempts(run)
    try:
        with open_regular(find_output(run, found[-1])) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").split("\n")
    except (OSError, IndexError):
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _read_verdict(run: RunDir) -> "Verdict | None":
    from echelon.core.codec import decode  # noqa: PLC0415
    from echelon.core.records import read_record  # noqa: PLC0415
    from echelon.run.verdict import Verdict  # noqa: PLC0415

    try:
        return decode(Verdict, read_record(run.verdict))
    except (OSError, ValueError):
        return None
