"""Where Echelon keeps a user's state across runs."""

import os
from collections.abc import Mapping
from pathlib import Path

from echelon.core.atomic_file import make_private


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
