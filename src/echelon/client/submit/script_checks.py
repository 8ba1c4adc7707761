"""What `echelon lint` finds in the scripts of a request, before it is queued.

Only an error on a line that the script always reaches refuses the request. Others are mentioned.
"""

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.core.notes import note
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.lint.rule import Finding

_NAMES = "E626"
"""The rule about undefined names: an error is on a line that always runs."""


def check_script(script: Path) -> list[str]:
    """Return the errors that end a Python script for certain, and mention the others."""
    errors = _find_errors(script)
    certain = [one for one in errors if one.code == _NAMES and one.severity == "error"]
    _mention([error for error in errors if error not in certain])
    return [
        f"{error.path}:{error.line}: {error.what.rstrip('.')} ({error.code}; if you know better, "
        f"add the comment: # echelon: ignore {error.code})"
        for error in certain
    ]


def refuse_job_script(script: Path, command: str) -> None:
    """Refuse a script for sbatch as the training script: each rank would execute all of it.

    Raises:
        UsageError: it has #SBATCH lines.
    """
    try:
        head = script.read_bytes()[:65536]
    except OSError:
        return  # reported as a missing script
    if head.startswith(b"#!") and re.search(rb"^#SBATCH\s", head, re.MULTILINE):
        raise UsageError(
            f"{script.name} is a job script with #SBATCH lines, not a training script",
            hint=f"did you mean: echelon {command} --from {shlex.quote(os.path.relpath(script))}",
        )


def mention_directives(script: Path) -> None:
    """Mention the errors of #SBATCH directives that Slurm, and so --from, ignores or misreads."""
    _mention([error for error in _find_errors(script) if error.code in ("E102", "E106")])


def _find_errors(script: Path) -> "list[Finding]":
    """Return the errors in a script, and those that it may reach.

    Empty if it is not a text file, or lint is not installed.
    """
    try:
        from echelon.lint.files import DiskFiles  # noqa: PLC0415
        from echelon.lint.linting import lint  # noqa: PLC0415
        from echelon.lint.rule import Severity  # noqa: PLC0415
    except ModuleNotFoundError:
        return []
    text = DiskFiles().read(str(script))
    found = lint(text, path=str(script), files=DiskFiles()) if text else []
    own = [one for one in found if one.path == str(script)]
    return [one for one in own if one.severity is Severity.ERROR or one.code == _NAMES]


def _mention(errors: "list[Finding]") -> None:
    for error in errors:
        note(f"warning: {error.path}:{error.line}: {error.code}: {error.what}")
