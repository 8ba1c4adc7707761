"""Access to the file system: reading scripts and checking whether directories exist.

A protocol, because tests lint scripts that exist only in memory.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, Protocol

from echelon.lint.repository import SKIPPED, Repository, read_ignored, read_submodules

_LARGEST_BYTES = 1_000_000
"""Larger files are data, not scripts."""
_MOST_NAMES = 20_000
"""Maximum number of entries of a repository to read."""
_EXECUTABLE = 0o111
_MODES = frozenset({0o100644, 0o100755})
"""Modes that git has for files."""
_MOST_BYTES = 20_000_000
"""Maximum size of the files to search for a name."""
_LONGEST_LINE = 1000
_LONGEST_PATH = 1000
_SUBMITTED_FROM = "${SLURM_SUBMIT_DIR}"
"""Mostly the directory of the repository."""
_READ = re.compile(
    r"^[^.]+$|\.(?:py|sh|bash|sbatch|slurm|job|pl|R|jl|m|md|rst|txt|mk|ya?ml|toml|smk)$"
)
"""Files that may mention a script."""


class Place(NamedTuple):
    """A range of a file. Lines and columns count from 1, and the end is exclusive."""

    path: str
    line: int
    column: int = 0
    """0 for the whole line."""
    end_line: int = 0
    end_column: int = 0


class Root(NamedTuple):
    """The directory of a git repository."""

    path: str
    name: str
    below: str
    """The folder of the file, relative to it; empty at the root."""


class Files(Protocol):
    """Paths are strings, as in scripts, relative to the current directory."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if it does not exist or is not text."""

    def is_folder(self, path: str) -> bool: ...

    def is_executable(self, path: str) -> bool:
        """Tell whether a file is executable, or the modes of its repository are not kept."""

    def root(self, path: str) -> Root | None:
        """Return the directory of the git repository that contains a file, if there is one."""

    def repository(self, path: str) -> Repository | None:
        """Return the git repository that contains a file.

        None if there is no repository, if it is too large, or if an empty folder of it may be a
        submodule.
        """

    def lines_with(self, path: str) -> tuple[str, ...]:
        """Return the lines of the other files in the git repository that name a file."""

    def __hash__(self) -> int: ...


class DiskFiles:
    def __init__(self) -> None:
        self._read: dict[str, str | None] = {}
        self._repositories: dict[Path, Repository | None] = {}
        self._have_modes: dict[Path, bool] = {}
        self._indices: dict[Path, bytes] = {}
        self._roots: dict[str, Root | None] = {}

    def read(self, path: str) -> str | None:
        """Return the text of a file as it was at the first read."""
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def _load(self, path: str) -> str | None:
        try:
            status = os.stat(path)  # noqa: PTH116  quicker, and most files do not exist
            if not S_ISREG(status.st_mode) or status.st_size > _LARGEST_BYTES:
                return None
            return Path(path).read_bytes().decode()
        except (OSError, ValueError):  # ValueError: not UTF-8, or a null byte in the name
            return None

    def is_folder(self, path: str) -> bool:
        try:
            return Path(path).is_dir()
        except (OSError, ValueError):
            return False

    def is_executable(self, path: str) -> bool:
        try:
            root = _root_of(path)
            if Path(path).stat().st_mode & _EXECUTABLE or root is None:
                return True
            if (mode := self._committed_mode(root, Path(path).absolute())) is not None:
                return bool(mode & _EXECUTABLE)
            if root not in self._have_modes:
                self._have_modes[root] = _has_modes(root)
            return not self._have_modes[root]
        except (OSError, ValueError):
            return True

    def _committed_mode(self, root: Path, path: Path) -> int | None:
        if root not in self._indices:
            index = root / ".git" / "index"
            small = index.is_file() and index.stat().st_size <= _MOST_BYTES
            self._indices[root] = index.read_bytes() if small else b""
        return read_mode(self._indices[root], path.relative_to(root).as_posix())

    def root(self, path: str) -> Root | None:
        folder = os.path.dirname(path)  # noqa: PTH120
        if folder not in self._roots:
            with suppress(OSError, ValueError):
                self._roots[folder] = _find_root(path)
        return self._roots.get(folder)

    def repository(self, path: str) -> Repository | None:
        try:
            root = _root_of(path)
            if root is not None and root not in self._repositories:
                self._repositories[root] = _list_repository(root)
        except (OSError, ValueError):
            return None
        return self._repositories[root] if root is not None else None

    def lines_with(self, path: str) -> tuple[str, ...]:
        try:
            own = Path(path).absolute()
            root = _root_of(path)
            return tuple(_lines_below(root, own)) if root is not None else ()
        except (OSError, ValueError):
            return ()


def _root_of(path: str) -> Path | None:
    """Return the directory of the git repository that contains a file."""
    above = Path(path).absolute().parents
    return next((folder for folder in above if (folder / ".git").exists()), None)


def _find_root(path: str) -> Root | None:
    folder = _root_of(path)
    if folder is None:
        return None
    above = [".."] * list(Path(path).absolute().parents).index(folder)
    own = Path(path).absolute().parent.relative_to(folder).as_posix()
    return Root(
        path=beside(path, "/".join(above)), name=folder.name, below="" if own == "." else own
    )


def _has_modes(root: Path) -> bool:
    """Tell whether any file of a repository is executable."""
    places = islice(root.rglob("*"), _MOST_NAMES)
    files = (place for place in places if place.is_file() and ".git" not in place.parts)
    return any(place.stat().st_mode & _EXECUTABLE for place in files)


def read_mode(index: bytes, path: str) -> int | None:
    """Return the mode that git has for a file; None if the index does not tell.

    An entry of version 2 has 62 bytes before its path, and the mode from the 25th on.
    """
    name = path.encode()
    if index[:8] != b"DIRC\0\0\0\2":
        return None
    at = index.find(name + b"\0")
    while at != -1:
        mode = int.from_bytes(index[at - 38 : at - 34], "big")
        if mode in _MODES:  # else it is the end of another path
            return mode
        at = index.find(name + b"\0", at + 1)
    return None


def _lines_below(root: Path, own: Path) -> Iterator[str]:
    """Yield the lines of scripts and documents that contain the name of a file."""
    name, read = own.name.encode(), 0
    for place, folders, names in os.walk(root):
        folders[:] = sorted(folder for folder in folders if folder not in SKIPPED)
        for file in (Path(place) / one for one in sorted(names) if _READ.search(one)):
            text = b"" if file == own else _read_bytes(file)
            read += len(text)
            if read > _MOST_BYTES:
                return
            if name in text:
                lines = (line for line in text.split(b"\n") if name in line)
                yield from (line[:_LONGEST_LINE].decode(errors="replace") for line in lines)


def _list_repository(root: Path) -> Repository | None:
    found, read = set[str](), 0
    modules = root / ".gitmodules"
    submodules = set(read_submodules(_read_bytes(modules).decode(errors="replace")))
    unlisted = {*SKIPPED, *submodules}
    for place, folders, names in os.walk(root):
        read += len(folders) + len(names)
        here = "" if place == str(root) else f"{os.path.relpath(place, root)}/"
        known = folders or names or f"/{here.rstrip('/')}" in submodules
        if read > _MOST_NAMES or (modules.exists() and not known):
            return None
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = [name for name in folders if name not in SKIPPED and name not in links]
        found.update(f"{here}{name}" for name in (*names, *links))
        found.update(f"{here}{name}/" for name in folders)
        if ".gitignore" in names:
            text = _read_bytes(Path(place) / ".gitignore").decode(errors="replace")
            unlisted.update(read_ignored(text, here))
    return Repository(name=root.name, paths=frozenset(found), unlisted=frozenset(unlisted))


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file; empty if it is no file, too large, or another user's."""
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
            return path.read_bytes()
    return b""


def beside(path: str, name: str) -> str:
    """Return a path that a script names, relative to the directory of the script."""
    return os.path.normpath(os.path.join(os.path.dirname(path), name))  # noqa: PTH118, PTH120


def find_file(files: Files, name: str, bases: Iterable[str]) -> str:
    """Return the path of a file that a script names; empty if lint does not find it.

    Args:
        files: the file system.
        name: as in the script. It can begin with an unknown variable.
        bases: scripts beside which it may be, the best guess first; "" for the current directory.
    """
    places = (beside(base, name) for base in bases)
    found = next((place for place in places if files.read(place) is not None), "")
    return found or next(_in_repository(files, name, bases), "")


def _in_repository(files: Files, name: str, bases: Iterable[str]) -> Iterator[str]:
    """Yield the file of the repository that a path names, wherever the repository is."""
    root = next((root for base in bases if base and (root := files.root(base))), None)
    if root is None or len(name) > _LONGEST_PATH:
        return
    parts = name.split("/")
    rests = [parts[n:] for n, part in enumerate(parts, start=1) if part == root.name]
    if parts[0] == _SUBMITTED_FROM:
        rests = [parts[1:]]
    elif parts[0] not in ("", "..", "~") and "$" not in name:
        rests.append(parts)
    for place in (os.path.normpath("/".join([root.path, *rest])) for rest in rests):
        if files.read(place) is not None:
            yield place
