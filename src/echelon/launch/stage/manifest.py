"""What a staged folder or file consists of. The digest of this list identifies a stage.

It is made from names, sizes and times, without reading any content: a login node does that at
submission, so that no node has to look at slow storage to know whether its own copy is right.
"""

import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from echelon.core.tree import is_inner
from echelon.errors import UnavailableError

FOLDER, FILE, LINK = "d", "f", "l"
SYSTEM = ("/", "/usr", "/usr/local")
"""Prefixes of a Python that is no environment of its own, and is not staged."""
THREADS = 16
"""Operations on storage that wait at the same time: each may take milliseconds."""
MOST_MANIFEST = 1 << 28
"""Largest size of an encoded manifest, in bytes."""

T = TypeVar("T")
R = TypeVar("R")


class Entry(NamedTuple):
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
class Manifest:
    """See the module."""

    entries: tuple[Entry, ...]
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


def decode_manifest(encoded: bytes) -> Manifest:
    """Return the manifest that another node sent, or that was kept.

    Raises:
        ValueError: it is damaged, or names a path outside.
    """
    try:
        entries = tuple(Entry(*values) for values in json.loads(encoded))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a manifest: {error}") from error
    folders = {entry.path for entry in entries if entry.kind == FOLDER}
    for entry in entries:
        parent = str(entry.path).rpartition("/")[0]
        # Each parent is a folder of this list, not a link, so that nothing leads elsewhere.
        if not is_inner(entry.path) or (parent and parent not in folders):
            raise ValueError(f"a manifest names {entry.path!r}")
    return Manifest(entries)


def describe_file(path: Path, *, named_by_content: bool) -> Manifest:
    """Return the manifest of a single file.

    Args:
        path: the file.
        named_by_content: its name has the digest of its content, so that its time does not matter.
    """
    status = path.stat()
    mtime_ns = 0 if named_by_content else status.st_mtime_ns
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return Manifest((Entry(path.name, FILE, mode, status.st_size, mtime_ns),))


def walk(root: Path, beat: Callable[[], None] = lambda: None) -> Manifest:
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

    def look(inner: str) -> list[Entry]:
        beat()
        return _list_folder(root, inner)

    found: list[Entry] = []
    waiting: Sequence[str] = [""]
    while waiting:
        fresh = [entry for entries in for_all(look, waiting) for entry in entries]
        found += fresh
        waiting = [entry.path for entry in fresh if entry.kind == FOLDER]
    return Manifest(tuple(sorted(found)))


def for_all(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for each item, for many at the same time; return the results in order.

    The threads end with the process: storage that does not respond must not keep it.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    numbers, turn = iter(range(len(items))), threading.Lock()

    def loop() -> None:
        while not errors:
            with turn:
                number = next(numbers, -1)
            if number < 0:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:  # noqa: BLE001  it is raised in the caller
                errors.append(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(THREADS, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


def _list_folder(root: Path, inner: str) -> list[Entry]:
    with os.scandir(root / inner) as listing:
        return [entry for item in listing if (entry := _describe(item, inner))]


def _describe(item: "os.DirEntry[str]", inner: str) -> Entry | None:
    path = f"{inner}/{item.name}" if inner else item.name
    status = item.stat(follow_symlinks=False)
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISDIR(status.st_mode):
        return Entry(path, FOLDER, mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, LINK, target=os.readlink(item.path))  # noqa: PTH115  faster
    if stat.S_ISREG(status.st_mode):
        return Entry(path, FILE, mode, status.st_size, status.st_mtime_ns)
    return None  # a socket or a pipe is of no use elsewhere


def encode_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return sorted numbers as ranges, each with its first and last number."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def decode_ranges(ranges: Any, count: int) -> list[int]:
    """Return the numbers below `count` that `encode_ranges` has encoded.

    Raises:
        ValueError: another node sent something else.
    """
    try:
        found = [n for first, last in ranges for n in range(int(first), min(int(last) + 1, count))]
    except (TypeError, ValueError) as error:
        raise ValueError("not a list of ranges") from error
    if any(number < 0 for number in found) or len(found) > count:
        raise ValueError("ranges of what is not there")
    return found
