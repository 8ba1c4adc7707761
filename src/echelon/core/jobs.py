"""A job as its cluster sees it."""

from dataclasses import dataclass

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "REQUEUE_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as its cluster sees it."""

    id: str
    state: str
    """The cluster's own word, without decoration; UNKNOWN when it has forgotten the job."""
    reason: str = ""
    """Why it waits or why it ended, as far as the cluster says."""
    nodes: str = ""
    """Host list; empty before it runs."""
    output: str = ""
    """Where its output goes."""
    exit_code: int = 0
    """Of the batch script; 128 + signal when one killed it."""

    @property
    def over(self) -> bool:
        return self.state not in WAITING | RUNNING
