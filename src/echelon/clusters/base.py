"""The protocol that each kind of cluster implements, in a file or directory of its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from echelon.core.jobs import Job
from echelon.spec.job_spec import JobSpec


class Cluster(Protocol):
    """Check, submit, look, stop, cancel."""

    def problems(self, spec: JobSpec) -> list[str]:
        """Return the conflicts of a request with the cluster's current limits."""

    def exclusions(self, request: JobSpec) -> str:
        """Return the nodes that a run must avoid: those it excludes, and those known to be bad."""

    def submit(
        self,
        script: Path,
        *,
        content: bytes,
        run_id: str,
        attempt: int,
        environ: Mapping[str, str],
        exclude: str = "",
    ) -> str:
        """Queue a script and return the job's id; never twice, whatever the network does.

        Args:
            script: its path.
            content: its content when it was checked; a cluster that keeps a copy executes this.
            run_id: the run that it belongs to.
            attempt: number of the attempt, passed to the script.
            environ: environment variables of the job.
            exclude: nodes to avoid.
        """

    def job(self, job_id: str, *, run_id: str) -> Job:
        """Return the state of a run's job; UNKNOWN if the id now belongs to another job."""

    def stop(self, job_id: str, *, run_id: str) -> None:
        """Ask a run's job to stop, with time for its ranks to save."""

    def cancel(self, job_id: str, *, run_id: str) -> None:
        """Cancel a run's job; one that has already ended is not an error."""
