"""Where Echelon keeps a user's state across runs."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from echelon.core.atomic_file import make_private
from echelon.core.records import read_bytes


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return Echelon's state folder; None for a user without a home directory."""
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if Path(state).is_absolute():
        return Path(state, "echelon")
    return Path(home, ".local", "state", "echelon") if home else None


def append_line(path: Path, line: str, *, flags: int = 0) -> None:
    """Add a line to a file of the state folder, which is created if need be.

    Raises:
        OSError: it cannot be written.
    """
    make_private(path.parent)
    flags |= os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        file.write(f"{line}\n")


def remember(content: bytes, environ: Mapping[str, str]) -> str:
    """Record that this user wrote a file with this content; return why that failed, if it did.

    A file in a project or a run directory may come from somebody else. One whose digest is in the
    user's state folder does not, wherever it is moved.
    """
    folder = state_folder(environ)
    if folder is None:
        return "no home directory"
    try:
        append_line(folder / "submitted", hashlib.sha256(content).hexdigest())
    except OSError as error:
        return str(error)
    return ""


def is_remembered(content: bytes, environ: Mapping[str, str]) -> bool:
    """Tell whether this user wrote a file with this content; see `remember`."""
    folder = state_folder(environ)
    try:
        known = read_bytes(folder / "submitted") if folder else b""
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest().encode() in known.split()
