"""Files that are written completely or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Write a file; if anything fails, the previous content stays.

    With `sync=False`, the caller has to call `sync_folder` before it relies on the file's name.
    """
    with replacing(path, mode=mode, sync=sync) as file:
        file.write(encode(content) if isinstance(content, str) else content)


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible by their owner alone.

    With the umask of a shared group, its members could replace the files in it.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise FileExistsError(folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder, with read-only folders in it, as far as possible."""
    for path, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            # Not the files: other runs may have links to them.
            os.chmod(path, 0o700)  # noqa: PTH101
    shutil.rmtree(folder, ignore_errors=True)


def encode(text: str) -> bytes:
    """Encode text for a file; command lines may contain bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape")


@contextmanager
def replacing(path: Path, *, mode: int = 0o600, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` at the end of the block, unless that raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the system does not name the file of a failed write
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
