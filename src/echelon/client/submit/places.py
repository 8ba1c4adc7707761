"""Select the cluster of a new run, and the part of a request that it supports."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.errors import UsageError

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

        return ray_cluster(find_address(address, os.environ), runs)
    if place == "slurm":
        from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

        return SlurmCluster(LocalShell(), os.environ, tell=note)
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415

    return LocalCluster(LocalShell(), environ, runs, tied=tied)


def choose_spec(request: "Merged", place: str, environ: Mapping[str, str]) -> "JobSpec":
    """Return a request that the cluster supports, with the ranks' Python set."""
    from echelon.client.submit.runs import choose_python  # noqa: PLC0415
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


def ray_cluster(address: str, runs: Path, *, glance: bool = False, given: bool = True) -> "Cluster":
    from echelon.clusters.ray.cluster import RayCluster  # noqa: PLC0415

    return RayCluster(address, runs, os.environ, shell=LocalShell(), glance=glance, given=given)
