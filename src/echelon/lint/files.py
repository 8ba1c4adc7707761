"""Access to the file system: reading scripts, and what a git repository contains.

A protocol, because tests lint scripts that exist only in memory.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, Protocol

from echelon.core.frozen import frozen

_LARGEST_BYTES = 1_000_000
"""Larger files are data, not scripts."""
_MOST_NAMES = 20_000
"""Maximum number of entries of a repository to read."""
_EXECUTABLE = 0o111
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", "site-packages", "wandb"})
"""Directories that are not listed."""
_SUBMITTED_FROM = "${SLURM_SUBMIT_DIR}/"
"""Mostly the directory of the repository."""


class Place(NamedTuple):
    """A range of a file. Lines and columns count from 1, and the end is exclusive."""

    path: str
    line: int
    column: int = 0
    """0 for the whole line."""
    end_line: int = 0
    end_column: int = 0


@frozen
class Repository:
    """The paths of a git repository."""

    path: str
    """Its directory, as seen from the current directory."""
    name: str
    paths: frozenset[str]
    """Relative to its directory. Those of folders end in a slash."""
    hidden: tuple[str, ...] = ()
    """Patterns that git ignores, and of its submodules; those with a slash are of paths."""

    def lacks(self, path: str) -> bool:
        """Tell whether a relative path does not exist, whichever the current directory is."""
        parts = [part for part in os.path.normpath(path).split("/") if part not in (".", "..")]
        end = "/".join(parts)
        if not parts or any(_hides(pattern, end, parts) for pattern in self.hidden):
            return False
        if len(parts) > 1 and f"{parts[0]}/" not in self.paths and not self._has(f"{parts[0]}/"):
            return False  # the folder may be another project, or this one under another name
        return not self._has(end) and not self._has(f"{end}/")

    def _has(self, end: str) -> bool:
        return end in self.paths or any(one.endswith(f"/{end}") for one in self.paths)


class Files(Protocol):
    """Paths are strings, as in scripts, relative to the current directory."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist or is not text."""

    def is_folder(self, path: str) -> bool: ...

    def is_executable(self, path: str) -> bool: ...

    def root(self, path: str) -> str | None:
        """Return the directory of the git repository that contains a file, if there is one."""

    def repository(self, path: str) -> Repository | None:
        """Return the git repository that contains a file; None if there is none, or a large one."""

    def __hash__(self) -> int: ...


class DiskFiles:
    def __init__(self) -> None:
        self._read: dict[str, str | None] = {}
        self._roots: dict[str, str | None] = {}
        self._repositories: dict[str, Repository | None] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file as it was at the first read."""
        if path not in self._read:
            self._read[path] = _load(path)
        return self._read[path]

    def is_folder(self, path: str) -> bool:
        try:
            return Path(path).is_dir()
        except (OSError, ValueError):
            return False

    def is_executable(self, path: str) -> bool:
        try:
            return bool(Path(path).stat().st_mode & _EXECUTABLE)
        except (OSError, ValueError):
            return True

    def root(self, path: str) -> str | None:
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in self._roots:
            self._roots[folder] = None
            with suppress(OSError, ValueError):
                above = Path(path).absolute().parents
                found = next((one for one in above if (one / ".git").exists()), None)
                self._roots[folder] = os.path.relpath(found) if found is not None else None
        return self._roots[folder]

    def repository(self, path: str) -> Repository | None:
        root = self.root(path)
        if root is None:
            return None
        if root not in self._repositories:
            self._repositories[root] = _list_repository(root)
        return self._repositories[root]


def _load(path: str) -> str | None:
    try:
        status = os.stat(path)  # noqa: PTH116  quicker, and most files do not exist
        if not S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
            return None
        return Path(path).read_bytes().decode()
    except (OSError, ValueError):  # ValueError: not UTF-8, or a null byte in the name
        return None


def _list_repository(root: str) -> Repository | None:
    found, hidden, read = set[str](), list[str](), 0
    for place, folders, names in os.walk(root):
        read += len(folders) + len(names)
        if read > _MOST_NAMES:
            return None
        folders[:] = [name for name in folders if name not in _SKIPPED]
        here = "" if place == root else f"{os.path.relpath(place, root)}/"
        found.update(f"{here}{name}" for name in names)
        found.update(f"{here}{name}/" for name in folders)
        for listed in (name for name in names if name in (".gitignore", ".gitmodules")):
            text = _load(f"{place}/{listed}") or ""
            hidden += (f"{here}{one}" for one in read_hidden(text, listed))
    name = Path(root).absolute().name
    return Repository(path=root, name=name, paths=frozenset(found), hidden=tuple(hidden))


def read_hidden(text: str, name: str) -> Iterator[str]:
    """Yield the patterns in .gitignore, or the folders in .gitmodules."""
    for line in map(str.strip, text.split("\n")):
        key, equals, value = line.partition("=")
        if name == ".gitmodules":
            line = value.strip() if equals and key.strip() == "path" else ""  # noqa: PLW2901
        if line and not line.startswith(("#", "!")):
            yield line.strip("/").removesuffix("/*").removesuffix("/**") or "*"


def _hides(pattern: str, path: str, parts: list[str]) -> bool:
    """Tell whether a pattern matches a path or a folder of it, wherever it starts."""
    if "/" in pattern:
        return fnmatchcase(path, f"{pattern}*") or fnmatchcase(path, f"*/{pattern}*")
    return any(fnmatchcase(part, pattern) for part in parts)


def beside(path: str, name: str) -> str:
    """Return a path that a script names, relative to the directory of the script."""
    return os.path.normpath(os.path.join(os.path.dirname(path), name))  # noqa: PTH118, PTH120


def find_file(files: Files, name: str, bases: Iterable[str]) -> str:
    """Return the path of a file that a script names; empty if lint does not find it.

    Args:
        files: the file system.
        name: as in the script.
        bases: scripts beside which it may be, the best guess first; "" for the current directory.
    """
    bases = tuple(bases)
    name = os.path.expanduser(name.removeprefix(_SUBMITTED_FROM))  # noqa: PTH111
    if len(name) > 1000:
        return ""
    roots = (root for base in bases[:1] if (root := files.root(base)))
    places = (
        *(beside(base, name) for base in bases),
        *(os.path.normpath(f"{root}/{name}") for root in roots if not name.startswith("/")),
    )
    return next((place for place in places if files.read(place) is not None), "")
