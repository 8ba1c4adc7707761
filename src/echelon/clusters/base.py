"""The interface of clusters, and what is the same for all: they queue the attempts of a run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from echelon.core.jobs import Job
from echelon.run.attempts import Attempt, submit_attempt
from echelon.run.directory import RunDir
from echelon.run.request import read_spec
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


def queue_attempt(
    run: RunDir,
    cluster: Cluster,
    environ: Mapping[str, str],
    script: bytes,
    *,
    claimed: Callable[[int], None] = lambda _number: None,
) -> Attempt:
    """Submit the next attempt of a run, and record its job.

    Args:
        run: the run.
        cluster: where to submit it.
        environ: environment variables of the job.
        script: the run's script, as created or checked (`trust.read_script`).
        claimed: called with the number of the attempt before it is submitted.
    """
    exclude = cluster.exclusions(read_spec(run))

    def queue(number: int) -> str:
        claimed(number)
        return cluster.submit(
            run.script,
            content=script,
            run_id=run.run_id,
            attempt=number,
            environ=environ,
            exclude=exclude,
        )

    return submit_attempt(run, queue, lambda job_id: cluster.job(job_id, run_id=run.run_id))
