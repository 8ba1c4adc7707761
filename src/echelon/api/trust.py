"""Which scripts a user has submitted: a run's folder that came from elsewhere is not executed.

A script names all that it starts: the commands of its environment, and launcher and request by
their digests. So the digest of a script, kept in the user's own state folder when it is submitted,
stands for all of it, wherever the run's folder is moved.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.records import read_bytes
from echelon.core.userstate import state_folder
from echelon.errors import NotFoundError, NotPermittedError
from echelon.run.directory import RunDir
from echelon.run.request import read_spec

_SEALED = re.compile(
    rb'^(exec "\$python" -c "\$start" )([0-9a-f]{64})( .+ \\\n    controller .+ )([0-9a-f]{64})$',
    re.MULTILINE,
)
"""How a script of the style `echelon` ends."""


def remember_script(script: bytes, environ: Mapping[str, str]) -> str:
    """Write down that the user has submitted a script; return why that was not possible, if so."""
    path = _record(environ)
    if path is None:
        return "there is no home folder"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
        try:
            os.write(handle, f"{_digest(script)}\n".encode())
        finally:
            os.close(handle)
    except OSError as error:
        return str(error)
    return ""


def read_script(run: RunDir, environ: Mapping[str, str], *, trust: bool = False) -> bytes:
    """Return a run's script, if the user has submitted it and it starts what lies there now.

    Args:
        run: whose.
        environ: our variables, which say where the user's state is.
        trust: take whatever lies there. Where launcher or request were changed, the script is
            changed to start them as they are.

    Raises:
        NotPermittedError: the user has not submitted this script, or files that it starts were
            changed since.
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
        if sealed != script:
            write_atomic(run.script, sealed, mode=0o700)
        return sealed
    if not _is_known(script, environ):
        raise NotPermittedError(
            f"{run.script} is not a script that you have submitted from this account; it would "
            f"execute {_describe(run)}",
            hint=f"read it, then: echelon resume {run.run_id} --trust",
        )
    if sealed != script:
        raise NotPermittedError(
            f"{run.launcher} or {run.spec} was changed after the run was submitted; it would now "
            f"execute {_describe(run)}",
            hint=f"if the change is yours: echelon resume {run.run_id} --trust",
        )
    return script


def seal_script(script: bytes, run: RunDir) -> bytes:
    """Return a script that starts launcher and request as they lie in the run's folder now."""
    if not _SEALED.search(script):
        return script  # it starts nothing in there
    launcher, request = (_digest(_read(path)).encode() for path in (run.launcher, run.spec))
    return _SEALED.sub(rb"\g<1>" + launcher + rb"\g<3>" + request, script)


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError:
        return b""  # which is not what was submitted


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record(environ: Mapping[str, str]) -> Path | None:
    folder = state_folder(environ)
    return folder / "submitted" if folder else None


def _is_known(script: bytes, environ: Mapping[str, str]) -> bool:
    path = _record(environ)
    return path is not None and _digest(script) in _read(path).decode(errors="replace").split()


def _describe(run: RunDir) -> str:
    """Return what a run would execute, in its user's words."""
    spec = read_spec(run)
    said = {
        "python": spec.python,
        "prologue": "; ".join(spec.prologue),
        "script": " ".join((spec.script, *spec.args)),
        "node_check": spec.node_check,
        "notify": spec.notify,
    }
    return ", ".join(f"{key} = {value!r}" for key, value in said.items() if value)
