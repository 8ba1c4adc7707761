"""Identifies the ranks' environment at submission, for `--stage`, by a digest of its file list."""

import sys
from pathlib import Path

from echelon.core.shell import Shell
from echelon.errors import EchelonError
from echelon.launch.stage.manifest import SYSTEM, describe_folder
from echelon.run.request import Environment
from echelon.spec.job_spec import JobSpec

_LOOK = "import sys; print(sys.prefix)"


def name_python(spec: JobSpec, folder: Path) -> str:
    """Return the ranks' Python, if neither conda, modules nor a prologue choose another. Pure."""
    return spec.python or (str(folder / spec.venv / "bin" / "python") if spec.venv else "python3")


def find_environment(spec: JobSpec, folder: Path, shell: Shell) -> Environment | None:
    """Return the environment to stage; None if only the nodes can determine it.

    With its digest, nodes that have a copy of the environment do not read storage.

    Args:
        spec: the request.
        folder: the job's directory.
        shell: runs another Python.
    """
    if not spec.stage or spec.image or spec.conda or spec.modules or spec.prologue:
        return None
    python = name_python(spec, folder)
    try:
        prefix = sys.prefix
        if python != sys.executable:
            prefix = shell.run([python, "-c", _LOOK], timeout_s=60).check().stdout.strip()
        if prefix in SYSTEM:
            return None
        return Environment(prefix=prefix, digest=describe_folder(Path(prefix)).digest)
    except (EchelonError, OSError):
        return None
