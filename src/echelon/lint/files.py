"""Access to the file system: reading scripts and checking whether directories exist.

A protocol, because tests lint scripts that exist only in memory.
"""

import os
from pathlib import Path
from typing import NamedTuple, Protocol

_LARGEST_BYTES = 1_000_000
"""Larger files are data, not scripts."""


class Place(NamedTuple):
    """A range of a file. Lines and columns count from 1, and the end is exclusive."""

    path: str
    line: int
    column: int = 0
    """0 for the whole line."""
    end_line: int = 0
    end_column: int = 0


class Files(Protocol):
    """Paths are strings, as in scripts, relative to the current directory."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist or is not text."""

    def is_folder(self, path: str) -> bool: ...

    def __hash__(self) -> int: ...


class DiskFiles:
    def __init__(self) -> None:
        self._read: dict[str, str | None] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file as it was at the first read."""
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def _load(self, path: str) -> str | None:
        try:
            file = Path(path)
            if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
                return None
            return file.read_bytes().decode()
        except (OSError, ValueError):  # ValueError: not UTF-8, or a null byte in the name
            return None

    def is_folder(self, path: str) -> bool:
        try:
            return Path(path).is_dir()
        except (OSError, ValueError):
            return False


def beside(path: str, name: str) -> str:
    """Return a path that a script names, relative to the directory of the script."""
    return os.path.normpath(os.path.join(os.path.dirname(path), name))  # noqa: PTH118, PTH120
