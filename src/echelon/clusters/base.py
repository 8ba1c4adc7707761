"""What a run needs of the place where it runs. One file per kind of place fulfils this protocol."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echelon.spec import JobSpec

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


class Cluster(Protocol):
    """Check, submit, look, stop, cancel."""

    def problems(self, spec: JobSpec) -> list[str]:
        """Return what the cluster's limits, as they are now, have against a request."""

    def submit(self, script: Path, *, run_id: str, attempt: int, environ: Mapping[str, str]) -> str:
        """Queue a script and return the job's id; never twice, whatever the network does."""

    def job(self, job_id: str, *, run_id: str) -> Job:
        """Return what has become of a run's job; UNKNOWN when the id is another's by now."""

    def stop(self, job_id: str, *, run_id: str) -> None:
        """Ask a run's job to stop, which gives its ranks a moment."""

    def cancel(self, job_id: str, *, run_id: str) -> None:
        """End a run's job; one that is over already is no error."""
