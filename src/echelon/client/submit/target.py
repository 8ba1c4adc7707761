"""Chooses the cluster of a new run, and the part of a request that this cluster supports."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.core.frozen import frozen
from echelon.core.notes import note
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from echelon.run.directory import RUNS

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster
    from echelon.spec.job_spec import JobSpec
    from echelon.spec.merging import Merged

TARGETS = ("auto", "local", "slurm", "ray")


@frozen
class Target:
    """Where runs are started."""

    on: str = "slurm"
    """`slurm`, `ray`, `local`, or `auto`: the current allocation, otherwise this machine."""
    runs: Path = RUNS
    """The directory of runs."""
    address: str = ""
    """The URL of Ray's dashboard."""
    tied: bool = False
    """Whether runs on this machine end with this process."""


def choose_cluster(
    on: str,
    runs: Path,
    *,
    address: str = "",
    tied: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> "Cluster":
    """Return the cluster for new runs: Slurm, Ray, or this machine; see `Target`."""
    if on not in TARGETS:
        raise UsageError(f"invalid value for --on: '{on}'", hint="choose local, slurm or ray")
    if address and on != "ray":
        raise UsageError(f"--address {address} requires --on ray", hint="add --on ray")
    if on == "ray":
        from echelon.clusters.ray.address import find_address  # noqa: PLC0415

        return ray_cluster(find_address(address, os.environ), runs)
    if on == "slurm":
        from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415

        return SlurmCluster(LocalShell(), os.environ, tell=note)
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415

    return LocalCluster(LocalShell(), environ, runs, tied=tied)


def choose_spec(request: "Merged", on: str, environ: Mapping[str, str]) -> "JobSpec":
    """Return a request that the cluster supports, with the ranks' Python set."""
    from echelon.spec.conflicts import TYPED, find_unused, show_values  # noqa: PLC0415

    given = request.spec
    if on in ("auto", "local"):
        typed = [key for key in find_unused(given, "local") if request.origins[key] in TYPED]
        if typed:
            note(
                f"warning: without effect, because no job is submitted: {show_values(given, typed)}"
            )
    if given.style != "echelon" and (dropped := find_unused(given, "style")):
        note(f"ignored by style '{given.style}': {show_values(given, dropped)}")
    if on != "ray":
        return choose_python(request.spec, environ, inherits=True)
    from echelon.clusters.ray.cluster import drop_slurm_only_keys  # noqa: PLC0415

    spec, dropped = drop_slurm_only_keys(request)
    if dropped:
        note(f"ignored on Ray, because only Slurm has it: {', '.join(dropped)}")
    return choose_python(spec, environ, inherits=False)


def choose_python(spec: "JobSpec", environ: Mapping[str, str], *, inherits: bool) -> "JobSpec":
    """Set the ranks' Python if the request names none: the active environment's, or our own.

    Our own Python is used only if it has torch, because this command may have a separate
    environment.

    Args:
        spec: the request.
        environ: our variables.
        inherits: whether the job inherits them, and finds an active environment on its PATH.
    """
    if spec.python or spec.venv or spec.conda or spec.modules or spec.prologue:
        return spec
    if spec.image:  # the image has torch; controller and agents do not need it
        return replace(spec, python=sys.executable)
    if prefix := environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX"):
        return spec if inherits else replace(spec, python=f"{prefix}/bin/python")
    from importlib.util import find_spec  # noqa: PLC0415  commands that list runs do not need it

    if find_spec("torch") is None:
        return spec
    return replace(spec, python=sys.executable)


def ray_cluster(address: str, runs: Path, *, glance: bool = False, given: bool = True) -> "Cluster":
    """Return the Ray cluster at an address."""
    from echelon.clusters.ray.cluster import RayCluster  # noqa: PLC0415

    return RayCluster(address, runs, os.environ, shell=LocalShell(), glance=glance, given=given)
