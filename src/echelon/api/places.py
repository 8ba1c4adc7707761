"""Select the cluster of a run: a named one, or where it was started."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.core.jobs import LOCAL, RAY, Job
from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.errors import NotPermittedError, UnavailableError, UsageError
from echelon.run.attempts import Attempt, attempts
from echelon.run.directory import RunDir

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster
    from echelon.spec.job_spec import JobSpec
    from echelon.spec.merging import Merged

PLACES = ("auto", "local", "slurm", "ray")


def choose_cluster(
    place: str,
    runs: Path,
    *,
    address: str = "",
    tied: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> "Cluster":
    """Return the cluster for new runs: Slurm, Ray, or this machine."""
    if place not in PLACES:
        raise UsageError(f"invalid value for --on: '{place}'", hint="choose local, slurm or ray")
    if address and place != "ray":
        raise UsageError(f"--address {address} requires --on ray", hint="add --on ray")
    if place == "ray":
        from echelon.clusters.ray.address import find_address  # noqa: PLC0415

        return _ray_cluster(find_address(address, os.environ), runs)
    if place == "slurm":
        from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

        return SlurmCluster(LocalShell(), os.environ, tell=note)
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415

    return LocalCluster(LocalShell(), environ, runs, tied=tied)


def choose_spec(request: "Merged", place: str, environ: Mapping[str, str]) -> "JobSpec":
    """Return a request that the cluster supports, with the ranks' Python set."""
    from echelon.api.runs import choose_python  # noqa: PLC0415
    from echelon.spec.conflicts import TYPED, find_unused, show_values  # noqa: PLC0415

    given = request.spec
    if place in ("auto", "local"):
        typed = [key for key in find_unused(given, "local") if request.origins[key] in TYPED]
        if typed:
            note(
                f"warning: without effect, because no job is submitted: {show_values(given, typed)}"
            )
    if given.style != "echelon" and (dropped := find_unused(given, "style")):
        note(f"ignored by style '{given.style}': {show_values(given, dropped)}")
    if place != "ray":
        return choose_python(request.spec, environ, inherits=True)
    from echelon.clusters.ray.cluster import keep_what_ray_knows  # noqa: PLC0415

    spec, dropped = keep_what_ray_knows(request)
    if dropped:
        note(f"ignored on Ray, because only Slurm has it: {', '.join(dropped)}")
    return choose_python(spec, environ, inherits=False)


class Places:
    """The clusters of several runs, for queries that must not wait long.

    Each cluster is created once, with short time-outs, and asked no more once it did not respond.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Glance] = {}

    def job(self, run: RunDir, known: Sequence[Attempt] | None = None) -> Job:
        """Return a run's current job; UNKNOWN, with the reason, if that cannot be known now.

        `known` are its attempts, if the caller has read them.
        """
        from echelon.api.outcomes import current_job  # noqa: PLC0415

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
    """A cluster as far as it responds."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster, self._away = cluster, ""

    def job(self, job_id: str, *, run_id: str) -> Job:
        if not self._away:
            try:
                return self._cluster.job(job_id, run_id=run_id)
            except (UnavailableError, NotPermittedError) as error:
                self._away = error.message
        return Job(id=job_id, state="UNKNOWN", reason=self._away)


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
        glance: only show states; ignore a cluster that does not respond.
        known: its attempts, if the caller has read them.
    """
    jobs = [attempt.job_id for attempt in (attempts(run) if known is None else known)]
    runs = run.path.parent
    if on_ray := [job for job in jobs if job.startswith(RAY)]:
        from echelon.clusters.ray import address as rayaddress  # noqa: PLC0415

        if address:
            return _ray_cluster(rayaddress.find_address(address, {}), runs, glance=glance)
        named = rayaddress.parse_job_name(on_ray[-1]).address
        given = not named or named in rayaddress.given_addresses(os.environ)
        return _ray_cluster(named, runs, glance=glance, given=given)
    if address:
        raise UsageError(f"the run '{run.run_id}' is not on Ray", hint="remove --address")
    here = any(job.startswith(LOCAL) for job in jobs)
    return choose_cluster("local" if here else "slurm", runs)


def _ray_cluster(
    address: str, runs: Path, *, glance: bool = False, given: bool = True
) -> "Cluster":
    from echelon.clusters.ray.cluster import RayCluster  # noqa: PLC0415

    return RayCluster(address, runs, os.environ, shell=LocalShell(), glance=glance, given=given)
