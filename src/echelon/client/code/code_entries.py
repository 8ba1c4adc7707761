"""The files and links of a project as they are on disk: their sizes, times, targets and content."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from echelon.client.code.code_listing import IGNORE, Listing
from echelon.client.code.tree import Tree
from echelon.core.files import BlockedError, Entry, Stamp
from echelon.errors import UsageError

_TRIES = 3
"""How often to read a file that changes during the read."""


def examine(root: Path, listing: Listing) -> Iterator[Entry]:
    """Yield the files and links of a listing that exist."""
    with Tree(root) as tree:
        for path in listing.code:
            # Git also lists files that were deleted, and those of a folder that became a link.
            with contextlib.suppress(FileNotFoundError, BlockedError):
                found = tree.examine(path)
                if found and (found.is_file or found.is_link):
                    yield found


def place_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy: relative if the link leads into the project. Pure."""
    folder = root / os.path.dirname(path)  # noqa: PTH120
    full = os.path.normpath(folder / target)
    if full == str(root) or full.startswith(f"{root}/"):
        return os.path.relpath(full, folder)
    return full


def relocate_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy on another machine. Pure.

    A link into the project becomes relative. Any other link keeps its target, which may not exist
    on the other machine.
    """
    placed = place_link(root, path, target)
    return target if os.path.isabs(placed) else placed  # noqa: PTH117  text


def read_settled(tree: Tree, entry: Entry) -> tuple[bytes, Stamp, bool] | None:
    """Return a file's content, its size and times, and whether it changed a moment ago.

    Return None if the file does not exist any more.
    """
    full = f"{tree.root}/{entry.path}"
    try:
        for _ in range(_TRIES):
            with tree.open(entry.path) as file:
                before = Stamp.of(os.fstat(file.fileno()))
                content = file.read()
                after = Stamp.of(os.fstat(file.fileno()))
            if before == after and len(content) == before.size:
                return content, before, before.is_recent()
    except (FileNotFoundError, BlockedError):
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {full}: {error.strerror}",
            hint=f"exclude it: echo '/{entry.path}' >> '{tree.root}/{IGNORE}'",
        ) from error
    raise UsageError(
        f"{full} changes all the time, so it cannot be copied",
        hint=f"exclude it: echo '/{entry.path}' >> '{tree.root}/{IGNORE}'",
    )
