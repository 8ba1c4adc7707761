"""The scripts that a path on the command line stands for: a file, a directory or a pattern."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from echelon.errors import UsageError

SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm", ".job")
"""Names of job scripts in a directory; Python scripts are read if a job script starts them."""
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"})
STDIN = "-"


def list_scripts(paths: list[str]) -> list[str]:
    """Return the files to lint, without duplicates.

    Raises:
        UsageError: a directory or a pattern has no job script.
    """
    return list(dict.fromkeys(found for path in paths for found in _scripts(path)))


def _scripts(path: str) -> list[str]:
    if path == STDIN:
        return [path]
    if Path(path).is_dir():
        found = sorted(_below(path))
        if not found:
            endings = ", ".join(SUFFIXES)
            raise UsageError(
                f"no job scripts in {path}", hint=f"lint looks for files that end in {endings}"
            )
        return found
    if glob.has_magic(path) and not Path(path).exists():
        names = glob.glob(path, recursive=True)  # noqa: PTH207  (a pattern may be absolute)
        found = sorted(name for name in names if Path(name).is_file())
        if not found:
            raise UsageError(f"no file matches {path}", hint="check the pattern")
        return found
    return [path]


def _below(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if not n.startswith(".") and n not in _SKIPPED]
        for name in names:
            path = os.path.normpath(os.path.join(place, name))  # noqa: PTH118
            if name.endswith(SUFFIXES) and Path(path).is_file() and _has_text(path):
                yield path


def _has_text(path: str) -> bool:
    """Tell whether a file is a script, so that others in a directory do not stop the check."""
    try:
        return (
            bool((content := Path(path).read_bytes()).strip())
            and b"\0" not in content
            and bool(content.decode())
        )
    except (OSError, UnicodeDecodeError):
        return False
