"""What a staged folder or file consists of. The digest of this list identifies a stage.

It is made from names, sizes and times, without reading any content: a login node does that at
submission, so that no node has to look at slow storage to know whether its own copy is right.
"""

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from echelon.core.files import Entry, check_paths, walk
from echelon.errors import NotPermittedError, UnavailableError

FOLDER, FILE, LINK = "d", "f", "l"
SYSTEM = ("/", "/usr", "/usr/local")
"""Prefixes of a Python that is no environment of its own, and is not staged."""
MOST_MANIFEST = 1 << 28
"""Largest size of an encoded manifest, in bytes."""


class StageEntry(NamedTuple):
    """A folder, file or link."""

    path: str
    """Relative to what is staged."""
    kind: str
    mode: int = 0
    size: int = 0
    """Of files, in bytes."""
    mtime_ns: int = 0
    """Of files: Python compares it with the one in its compiled file."""
    target: str = ""
    """Of links."""


@dataclass(frozen=True)
class StageManifest:
    """What a staged folder or file consists of."""

    entries: tuple[StageEntry, ...]
    """Sorted by path, so that a folder comes before what is in it."""

    @cached_property
    def encoded(self) -> bytes:
        return json.dumps(self.entries, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()

    @cached_property
    def files(self) -> tuple[int, ...]:
        """Positions of the files."""
        return tuple(i for i, entry in enumerate(self.entries) if entry.kind == FILE)

    @cached_property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)


def decode_manifest(encoded: bytes, digest: str = "") -> StageManifest:
    """Return the manifest that another node sent, or that was kept.

    Args:
        encoded: the manifest.
        digest: of the manifest if it was kept: its paths were checked before.

    Raises:
        ValueError: it is damaged, has another digest, or names a path outside.
    """
    if digest and hashlib.sha256(encoded).hexdigest() != digest:
        raise ValueError("it is the manifest of something else")
    try:
        manifest = StageManifest(tuple(StageEntry(*values) for values in json.loads(encoded)))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    if not digest:
        _check(manifest)
    return manifest


def _check(manifest: StageManifest) -> None:
    """Check that each path is inside, in a folder that is listed, and not behind a link."""
    inside = [entry.path for entry in manifest.entries if entry.kind == FOLDER]
    others = [entry.path for entry in manifest.entries if entry.kind != FOLDER]
    try:
        check_paths(others, inside)
    except NotPermittedError as error:
        raise ValueError(f"damaged manifest: {error.message}") from error
    listed = {"", *inside}
    for path in (*others, *inside):
        if path.rpartition("/")[0] not in listed:
            raise ValueError(f"a manifest names {path!r}, but not the folder around it")


def describe_file(path: Path, *, named_by_content: bool) -> StageManifest:
    """Return the manifest of a single file.

    Args:
        path: the file.
        named_by_content: its name has the digest of its content, so that its time does not matter.
    """
    status = path.stat()
    mtime_ns = 0 if named_by_content else status.st_mtime_ns
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return StageManifest((StageEntry(path.name, FILE, mode, status.st_size, mtime_ns),))


def describe_folder(root: Path, beat: Callable[[], None] = lambda: None) -> StageManifest:
    """Return the manifest of a folder.

    Args:
        root: the folder.
        beat: called for each folder in it, as a sign of life.

    Raises:
        OSError: it cannot be read.
        UnavailableError: it is not a folder.
    """
    if not root.is_dir():
        raise UnavailableError(f"{root} is not a folder", hint="check the path: ls -d " + str(root))
    found = map(_describe, walk(root, beat=beat))
    return StageManifest(tuple(sorted(filter(None, found))))


def _describe(found: Entry) -> StageEntry | None:
    mode = stat.S_IMODE(found.mode) & 0o777
    if found.is_folder:
        return StageEntry(found.path, FOLDER, mode)
    if found.is_link:
        return StageEntry(found.path, LINK, target=found.target)
    if found.is_file:
        size, mtime_ns = found.status.st_size, found.status.st_mtime_ns
        return StageEntry(found.path, FILE, mode, size, mtime_ns)
    return None  # a socket or a pipe is of no use elsewhere
