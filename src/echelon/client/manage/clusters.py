"""The cluster of an existing run: where it was started."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from echelon.client.manage.run_status import current_job
from echelon.client.submit.target import choose_cluster, ray_cluster
from echelon.core.jobs import LOCAL, RAY, Job
from echelon.core.notes import note
from echelon.errors import NotPermittedError, UnavailableError, UsageError
from echelon.run.attempts import Attempt, attempts
from echelon.run.directory import RunDir

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster


class Places:
    """The clusters of several runs, for queries that must not wait long.

    Each cluster is created once, with short time-outs. It is not queried again after it failed to
    respond.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Glance] = {}

    def job(self, run: RunDir, known: Sequence[Attempt] | None = None) -> Job:
        """Return a run's current job; UNKNOWN, with the reason, if it cannot be determined.

        `known` are the run's attempts, if the caller has read them.
        """
        try:
            known = attempts(run) if known is None else known
            return current_job(run, self._of(run, known), known)
        except OSError as error:
            reason = f"cannot read {error.filename}: {error.strerror}"
            return Job(id="", state="UNKNOWN", reason=reason)

    def _of(self, run: RunDir, known: Sequence[Attempt]) -> "_Glance":
        found = cluster_of(run, glance=True, known=known)
        address, given = getattr(found, "address", ""), getattr(found, "given", True)
        key = f"{type(found)} {address} {given}"
        if not given and key not in self._known:
            note(
                f"not contacting the Ray address {address!r}: it comes from the directory of "
                f"{run.run_id}, and you never used it yourself\n"
                "hint: if it is your cluster, set RAY_API_SERVER_ADDRESS to its address"
            )
        return self._known.setdefault(key, _Glance(found))


class _Glance:
    """A cluster that is not queried again after it failed to respond."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster, self._failure = cluster, ""

    def job(self, job_id: str, *, run_id: str) -> Job:
        if not self._failure:
            try:
                return self._cluster.job(job_id, run_id=run_id)
            except (UnavailableError, NotPermittedError) as error:
                self._failure = error.message
        return Job(id=job_id, state="UNKNOWN", reason=self._failure)


def cluster_of(
    run: RunDir,
    *,
    address: str = "",
    glance: bool = False,
    known: Sequence[Attempt] | None = None,
) -> "Cluster":
    """Return the cluster where a run was started.

    Args:
        run: the run.
        address: the current address of its Ray cluster.
        glance: create the cluster for queries alone, with short time-outs.
        known: the run's attempts, if the caller has read them.
    """
    jobs = [attempt.job_id for attempt in (attempts(run) if known is None else known)]
    runs = run.path.parent
    if on_ray := [job for job in jobs if job.startswith(RAY)]:
        from echelon.clusters.ray import address as rayaddress  # noqa: PLC0415

        if address:
            return ray_cluster(rayaddress.find_address(address, {}), runs, glance=glance)
        named = rayaddress.parse_job_name(on_ray[-1]).address
        given = not named or named in rayaddress.given_addresses(os.environ)
        return ray_cluster(named, runs, glance=glance, given=given)
    if address:
        raise UsageError(f"the run '{run.run_id}' is not on Ray", hint="remove --address")
    here = any(job.startswith(LOCAL) for job in jobs)
    return choose_cluster("local" if here else "slurm", runs)
