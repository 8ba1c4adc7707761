"""What a run needs of the place where it runs. One file per kind of place fulfils this protocol."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from echelon.core.jobs import Job
from echelon.spec.job_spec import JobSpec


class Cluster(Protocol):
    """Check, submit, look, stop, cancel."""

    def problems(self, spec: JobSpec) -> list[str]:
        """Return what the cluster's limits, as they are now, have against a request."""

    def exclusions(self, request: JobSpec) -> str:
        """Return the nodes that a run shall not have: those it excludes, and those known as bad."""

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
            script: where it lies.
            content: what was in it when it was checked: nothing else is executed, where the
                cluster keeps a copy.
            run_id: whose it is.
            attempt: its argument.
            environ: its variables.
            exclude: nodes that it shall not have.
        """

    def job(self, job_id: str, *, run_id: str) -> Job:
        """Return what has become of a run's job; UNKNOWN when the id is another's by now."""

    def stop(self, job_id: str, *, run_id: str) -> None:
        """Ask a run's job to stop, which gives its ranks a moment."""

    def cancel(self, job_id: str, *, run_id: str) -> None:
        """End a run's job; one that is over already is no error."""
