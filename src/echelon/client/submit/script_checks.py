"""Checks the scripts of a request with `echelon lint` before it is queued.

A request is refused only for an error on a line that the script always reaches. Other errors are
printed as warnings.
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
"""The rule for undefined names, whose errors are on lines that always run."""


def check_script(script: Path) -> list[str]:
    """Return the errors that certainly end a Python script, and print the others as warnings."""
    errors = _find_errors(script)
    certain = [one for one in errors if one.code == _NAMES and one.severity == "error"]
    _warn([error for error in errors if error not in certain])
    return [
        f"{error.path}:{error.line}: {error.what.rstrip('.')} ({error.code}; if you know better, "
        f"add the comment: # echelon: ignore {error.code})"
        for error in certain
    ]


def refuse_job_script(script: Path, command: str) -> None:
    """Refuse a job script as the training script, because each rank would execute all of it.

    Raises:
        UsageError: the script has #SBATCH lines.
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
    """Warn about #SBATCH directives that Slurm, and therefore --from, ignores or misreads."""
    _warn([error for error in _find_errors(script) if error.code in ("E102", "E106")])


def _find_errors(script: Path) -> "list[Finding]":
    """Return the errors in a script, and all its undefined names.

    Return nothing if the file is not text, or the extra `lint` is not installed.
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


def _warn(errors: "list[Finding]") -> None:
    for error in errors:
        note(f"warning: {error.path}:{error.line}: {error.code}: {error.what}")
