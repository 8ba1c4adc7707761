"""Where an examination takes place."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an examination takes place."""

    probe: Sequence[str]
    """The command that starts a probe on a node, from a launcher in the shared folder."""
    folder: Path
    """The shared folder's part that is ours: nodes are asked whether they see it."""
    python: str
    """The Python of the ranks."""
    scratch: Path
    """A folder of this host's own."""
