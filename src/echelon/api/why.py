"""Why a run ended, from what its controller left and what the cluster says."""

from echelon.core.jobs import WAITING, Job
from echelon.core.records import read_record
from echelon.run.directory import RunDir
from echelon.run.verdict import Failure, Verdict, from_record, judge

_STATES = {
    "TIMEOUT": ("time limit", "the job reached its time limit"),
    "PREEMPTED": ("preemption", "another job took the nodes"),
    "NODE_FAIL": ("lost node", "a node of the job failed"),
    "OUT_OF_MEMORY": ("out of memory", "Slurm ended the job: its memory was full"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
}
"""Slurm's states that say why better than any process of the job could."""


def find_verdict(run: RunDir, job: Job) -> Verdict | None:
    """Return why a run failed; None when it has not."""
    if job.state == "COMPLETED" or job.state in WAITING:
        return None  # one that waits again is to be tried again, whatever ended it before
    own = _read(run)
    cause, message = _STATES.get(job.state, ("", ""))
    guessed = own is not None and own.failure.cause in {"cancelled", "preemption"} - {cause}
    if cause and (own is None or guessed):
        return judge([Failure(cause=cause, message=message, exit_code=job.exit_code or 1)])
    if own is not None or not job.over:
        return own
    message = f"the job is {job.state}{f' ({job.reason})' if job.reason else ''}, and left no word"
    return judge([Failure(cause="exit", message=message, exit_code=job.exit_code or 1)])


def _read(run: RunDir) -> Verdict | None:
    try:
        return from_record(read_record(run.verdict))
    except (OSError, ValueError):
        return None
