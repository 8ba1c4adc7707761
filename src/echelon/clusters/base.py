"""The interface of clusters; each kind is implemented in its own module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from echelon.core.jobs import Job
from echelon.spec.job_spec import JobSpec


class Jobs(Protocol):
    """Queries the state of jobs."""

    def job(self, job_id: str, *, run_id: str) -> Job:
        """Return the job of a run; UNKNOWN if the ID now belongs to another job."""


class Cluster(Jobs, Protocol):
    """A place where runs execute."""

    def problems(self, spec: JobSpec) -> list[str]:
        """Return how a request exceeds the current limits of the cluster."""

    def exclusions(self, request: JobSpec) -> str:
        """Return the nodes to exclude: the request's, and all that are known to be bad."""

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
        """Submit a script once, even if the network fails, and return the job ID.

        Args:
            script: path of the script.
            content: the script as it was checked. Clusters that keep a copy execute only this.
            run_id: the run.
            attempt: the argument of the script.
            environ: the environment of the script.
            exclude: nodes to exclude.
        """

    def stop(self, job_id: str, *, run_id: str, interrupt: bool = False) -> None:
        """Request a job to stop, with time for its ranks to save.

        Args:
            job_id: the job.
            run_id: the run.
            interrupt: ranks that do not stop at an agreed step get SIGINT instead of SIGTERM, if
                the cluster can tell them apart.
        """

    def cancel(self, job_id: str, *, run_id: str) -> None:
        """End a job immediately; does nothing if it has already ended."""
