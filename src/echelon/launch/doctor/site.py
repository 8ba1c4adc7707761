"""Paths that an examination uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Paths that an examination uses."""

    probe: Sequence[str]
    """The command that starts a probe on a node, from a launcher in the shared directory."""
    folder: Path
    """Our part of the shared directory; nodes are checked for seeing it."""
    python: str
    """The Python of the ranks."""
    scratch: Path
    """A directory local to this host."""
