"""Chooses the backend of a job, for its controller and for the doctor."""

from collections.abc import Mapping

from echelon.core.shell import Shell
from echelon.launch.backends.base import AttemptContext, Backend
from echelon.launch.backends.local import local_backend
from echelon.launch.backends.ray.backend import ray_backend
from echelon.launch.backends.slurm.backend import slurm_backend
from echelon.launch.backends.step import step_backend
from echelon.launch.protocol.rank_environment import ON_RAY, STEP


def choose_backend(
    shell: Shell, environ: Mapping[str, str], attempt: AttemptContext | None = None
) -> Backend:
    """Return the backend of the place in which this process runs.

    Args:
        shell: runs programs.
        environ: our variables.
        attempt: the attempt of a run; None to examine nodes, which no job continues.
    """
    if attempt and STEP in environ:
        return step_backend(environ, attempt)
    if attempt and ON_RAY in environ:
        return ray_backend(shell, environ, attempt)
    if "SLURM_JOB_ID" in environ and "SLURM_JOB_NODELIST" in environ:
        return slurm_backend(shell, environ, attempt)
    return local_backend(shell, attempt)
