"""The files and links of a project as they are on disk: their sizes, times, targets and content."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from echelon.api.project_files import IGNORE, Listing
from echelon.core.frozen import frozen
from echelon.errors import UsageError
from echelon.run.code import Stamp

_TRIES = 3
"""How often a file is read that changes meanwhile."""


@frozen
class Entry:
    """A file or link of a project."""

    path: str
    stamp: Stamp
    mode: int
    target: str = ""
    """Of a link."""


def examine(root: Path, listing: Listing) -> Iterator[Entry]:
    """Yield the files and links of a listing that exist, with their size and times."""
    for path in listing.code:
        full = f"{root}/{path}"
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile
            found = os.lstat(full)
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(full)  # noqa: PTH115  as text
                yield Entry(path=path, stamp=Stamp.of(found), mode=found.st_mode, target=target)
            elif stat.S_ISREG(found.st_mode):
                yield Entry(path=path, stamp=Stamp.of(found), mode=found.st_mode)


def place_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy: inside the copy if it was inside the project. Pure."""
    folder = root / os.path.dirname(path)  # noqa: PTH120
    full = os.path.normpath(folder / target)
    if full == str(root) or full.startswith(f"{root}/"):
        return os.path.relpath(full, folder)
    return full


def relocate_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy on another machine. Pure.

    A link to somewhere in the project is relative. Any other is the same as here, although what it
    leads to may not exist there.
    """
    placed = place_link(root, path, target)
    return target if os.path.isabs(placed) else placed  # noqa: PTH117  text


def read_settled(root: Path, entry: Entry) -> tuple[bytes, Stamp, bool] | None:
    """Return a file's content, its size and times, and whether it changed a moment ago."""
    full = f"{root}/{entry.path}"
    try:
        for _ in range(_TRIES):
            with open(full, "rb") as file:  # noqa: PTH123  many of them
                before = Stamp.of(os.fstat(file.fileno()))
                content = file.read()
                after = Stamp.of(os.fstat(file.fileno()))
            if before == after and len(content) == before.size:
                return content, before, before.is_recent()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {full}: {error.strerror}",
            hint=f"exclude it: echo '/{entry.path}' >> '{root}/{IGNORE}'",
        ) from error
    raise UsageError(
        f"{full} changes all the time, so it cannot be copied",
        hint=f"exclude it: echo '/{entry.path}' >> '{root}/{IGNORE}'",
    )
