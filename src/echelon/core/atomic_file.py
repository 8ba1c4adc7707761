"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o600) -> None:
    """Put the whole content under `path` or, whatever happens, leave what was there."""
    with replacing(path, mode=mode) as file:
        file.write(encode(content) if isinstance(content, str) else content)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone.

    The umask of a shared group would let its members replace what lies in there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise FileExistsError(folder)


def encode(text: str) -> bytes:
    """Return text as files have it: what came from a command line may hold bytes that are none."""
    return text.encode(errors="surrogateescape")


@contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Write what will be under `path` at the end of the block; after an error, nothing changed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
