"""Where runs are: what `--on` means, and where one was started."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster
    from echelon.core.rundir import RunDir

PLACES = ("auto", "local", "slurm", "ray")
On = Annotated[
    str,
    typer.Option("--on", metavar="PLACE", help="Where: local, slurm or ray.", show_default=False),
]
Address = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Of --on ray: where it takes jobs, http://HEAD:8265.",
        show_default=False,
    ),
]


def choose_cluster(
    place: str,
    runs: Path,
    *,
    address: str = "",
    tied: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> "Cluster":
    """Return the place where runs are to be: slurm, a Ray cluster, or here."""
    from echelon.clusters.local import LocalCluster  # noqa: PLC0415
    from echelon.clusters.slurm import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if place not in PLACES:
        raise UsageError(f"--on {place} is no place", hint="write --on local, slurm or ray")
    if address and place != "ray":
        raise UsageError(f"--address {address} is for --on ray", hint="write --on ray as well")
    if place == "ray":
        from echelon.clusters.ray import RayCluster, find_address  # noqa: PLC0415

        return RayCluster(find_address(address, os.environ), runs, os.environ, shell=LocalShell())
    if place == "slurm":
        return SlurmCluster(LocalShell(), os.environ)
    return LocalCluster(LocalShell(), environ, runs, tied=tied)


def cluster_of(run: "RunDir") -> "Cluster":
    """Return the place where a run was started."""
    from echelon.clusters import local, ray  # noqa: PLC0415
    from echelon.launch.attempts import attempts  # noqa: PLC0415

    jobs = [attempt.job_id for attempt in attempts(run)]
    runs = run.path.parent
    if on_ray := [ray.parse_job_name(job) for job in jobs if job.startswith(ray.PREFIX)]:
        return choose_cluster("ray", runs, address=on_ray[-1].address)
    here = any(job.startswith(local.PREFIX) for job in jobs)
    return choose_cluster("local" if here else "slurm", runs)
