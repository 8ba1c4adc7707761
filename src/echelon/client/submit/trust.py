"""Checks that the user has submitted a script, so that foreign run directories are not executed.

A script contains the commands of its environment, and the digests of launcher, request and code.
The digest of a submitted script, kept in the user's state directory, therefore covers everything
that the script starts, even after the run directory was moved.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.records import read_bytes
from echelon.core.userstate import is_remembered
from echelon.errors import NotFoundError, NotPermittedError
from echelon.run.code import verify_code
from echelon.run.directory import RunDir
from echelon.run.request import read_code, read_spec, read_tasks_digest
from echelon.run.sweep import read_table, sweep_of, task_script, task_spec

_SEALED = re.compile(
    rb'^((?:exec |PYTHONPATH=\$\()"\$python" -c "\$start" )([0-9a-f]{64})'
    rb"( .+ \\\n    (?:controller|code|task|broker) .+ )([0-9a-f]{64})(?=$|\) )",
    re.MULTILINE,
)
"""Matches the line that starts the launcher; groups 2 and 4 are digests of launcher and request."""


def read_script(run: RunDir, environ: Mapping[str, str], *, trust: bool = False) -> bytes:
    """Return a run's script if the user has submitted it, and its files are unchanged.

    Args:
        run: the run.
        environ: environment variables, which locate the user's state.
        trust: accept any script. If launcher or request were changed, the digests in the script
            are updated.

    Raises:
        NotPermittedError: the user has not submitted this script, or files that it starts were
            changed since. A changed copy of the code is never accepted.
        NotFoundError: the script is missing.
    """
    try:
        script = read_bytes(run.script)
    except OSError as error:
        raise NotFoundError(
            f"cannot read the script of the run '{run.run_id}': {error}",
            hint="start a new run: echelon submit",
        ) from error
    sealed = seal_script(script, run)
    if trust:
        _check_code(run, script)
        if sealed != script:
            write_atomic(run.script, sealed, mode=0o700)
        return sealed
    if not is_remembered(script, environ) and not _is_of_known_sweep(run, script, environ):
        raise NotPermittedError(
            f"{run.script} was not submitted by you from this account; it would execute "
            f"{_describe(run)}",
            hint=f"if you trust its content: echelon resume {run.run_id} --trust",
        )
    if sealed != script:
        raise NotPermittedError(
            f"{run.launcher} or {run.spec} was changed after submission; it would now execute "
            f"{_describe(run)}",
            hint=f"if the change is yours: echelon resume {run.run_id} --trust",
        )
    _check_code(run, script)
    return script


def _check_code(run: RunDir, script: bytes) -> None:
    """Check the copy of the code if a script starts the launcher."""
    code = read_code(run) if _SEALED.search(script) else None
    if code is not None:
        verify_code(run, code)


def seal_script(script: bytes, run: RunDir) -> bytes:
    """Return a script with the digests of the current launcher and request."""
    if not _SEALED.search(script):
        return script  # the script starts no launcher
    launcher, request = (_digest(_read(path)).encode() for path in (run.launcher, run.spec))
    return _SEALED.sub(rb"\g<1>" + launcher + rb"\g<3>" + request, script)


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError:
        return b""  # its digest differs from the submitted one


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_of_known_sweep(run: RunDir, script: bytes, environ: Mapping[str, str]) -> bool:
    """Tell whether a run has the files of a task of a sweep that the user has submitted."""
    found = sweep_of(run)
    if found is None:
        return False
    sweep, index = found
    shared = _read(sweep.task_script)
    if not is_remembered(shared, environ) or seal_script(shared, sweep.files) != shared:
        return False
    table = read_table(sweep, read_tasks_digest(sweep.files, ""))
    wanted = task_spec(sweep, read_spec(sweep.files), table, index)
    same = (read_spec(run), read_code(run)) == (wanted, read_code(sweep.files))
    return same and task_script(sweep, shared, index, _digest(_read(run.spec))) == script


def _describe(run: RunDir) -> str:
    """Return the keys that determine which commands a run would execute."""
    spec = read_spec(run)
    values = {
        "python": spec.python,
        "prologue": "; ".join(spec.prologue),
        "script": " ".join((spec.script, *spec.args)),
        "node_check": spec.node_check,
        "notify": spec.notify,
    }
    return ", ".join(f"{key} = {value!r}" for key, value in values.items() if value)
