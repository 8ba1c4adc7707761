"""A job as its cluster sees it."""

import re
from collections.abc import Iterable, Mapping

from echelon.core.frozen import frozen
from echelon.errors import UsageError

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})

_SHORT = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "S": "SUSPENDED",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "F": "FAILED",
    "CA": "CANCELLED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PR": "PREEMPTED",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
}
"""Slurm's short forms of states."""
_STATES = sorted({*_SHORT.values(), *WAITING, *RUNNING, "UNKNOWN", "UNSUBMITTED"})

LOCAL, RAY = "local:", "ray:"
"""How the ids of other jobs than Slurm's begin."""
_ID = re.compile(
    r"[0-9]{1,18}(?:[_+][0-9]{1,9})?"  # Slurm's
    r"|local:[A-Za-z0-9._-]{1,255}:[1-9][0-9]{0,8}:[0-9]{0,20}"
    r"|ray:[A-Za-z0-9._-]{1,255}-[0-9]{1,6}(?:@[!-~]{1,500})?"
)


def is_job_id(text: str) -> bool:
    """Tell whether a text has the form of a job id: a file may contain anything."""
    return _ID.fullmatch(text) is not None


def parse_states(texts: Iterable[str]) -> frozenset[str]:
    """Parse names of states as squeue does: in either case, long or short, separated by commas.

    Raises:
        UsageError: there is no such state.
    """
    words = [word.strip().upper() for text in texts for word in text.split(",")]
    found = [_SHORT.get(word, word) for word in words]
    if unknown := [word for word in found if word not in _STATES]:
        raise UsageError(f"unknown state '{unknown[0]}'", hint=f"states: {', '.join(_STATES)}")
    return frozenset(found)


def short_id(job_id: str) -> str:
    """Return a job's id as users know it: Slurm's number or Ray's name; `local` without one."""
    kind, colon, rest = job_id.partition(":")
    return (rest.partition("@")[0] if kind == "ray" else kind) if colon else job_id


def describe_job(job_id: str) -> str:
    """Return how a job runs: `as job 42`, `as Ray job train-abcd-1`, or `on this machine`."""
    if job_id.startswith("local:"):
        return "on this machine"
    return f"as {'Ray job' if job_id.startswith('ray:') else 'job'} {short_id(job_id)}"


def own_job(environ: Mapping[str, str]) -> str:
    """Return the id of the Slurm job around us; empty if there is none.

    A task of an array is 7_3: its plain number may also be that of the whole array.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if job_id and array.isdecimal() and task.isdecimal() else job_id


@frozen
class Job:
    """One job as its cluster sees it."""

    id: str
    state: str
    """The cluster's own term, without flags; UNKNOWN if it no longer knows the job."""
    reason: str = ""
    """Why it waits or why it ended, if the cluster says so."""
    nodes: str = ""
    """Host list; empty before it starts."""
    output: str = ""
    """Where its output goes."""
    exit_code: int = 0
    """Of the batch script; 128 + signal if one killed it."""

    @property
    def over(self) -> bool:
        return self.state not in WAITING | RUNNING
