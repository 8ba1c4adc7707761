"""Where Echelon keeps what it remembers for one user, from run to run."""

from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's state folder of Echelon; None for a user without a home."""
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if Path(state).is_absolute():
        return Path(state, "echelon")
    return Path(home, ".local", "state", "echelon") if home else None
