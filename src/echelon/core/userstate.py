"""Where Echelon keeps a user's state across runs."""

from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return Echelon's state folder; None for a user without a home directory."""
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if Path(state).is_absolute():
        return Path(state, "echelon")
    return Path(home, ".local", "state", "echelon") if home else None
