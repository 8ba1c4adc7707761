"""Single files below a folder that others may write to: nothing outside is read or written.

Each folder on the way to a file is opened without following links, as in `core.files.walk`.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from echelon.core.files import (
    BlockedError,
    Entry,
    folders,
    is_inner,
    open_folder,
    refuse_path,
    walk,
)
from echelon.core.records import UnreadableError
from echelon.errors import UnavailableError

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Tree:
    """The files below a folder. No method follows a link below it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._last = ("", self._top)
        """The folder that was used last: most files are in the same one as the file before."""
        self._missing: str | None = None
        """A folder that does not exist, for the same reason."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keep("", self._top)
        os.close(self._top)

    def _keep(self, folder: str, handle: int) -> None:
        if self._last[1] not in (self._top, handle):
            os.close(self._last[1])
        self._last = (folder, handle)

    def _open(self, folder: str, *, create: bool) -> int:
        """Return a folder's handle, which is valid until the next call."""
        if self._last[0] == folder:
            return self._last[1]
        if folder == self._missing and not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        try:
            here = open_folder(self.root, self._top, folder, create=create)
        except FileNotFoundError:
            self._missing = folder
            raise
        self._keep(folder, here)
        self._missing = None
        return here

    def _split(self, path: str, *, create: bool = False) -> tuple[int, str]:
        if not is_inner(path):
            raise refuse_path(path)
        folder, _, name = path.rpartition("/")
        return self._open(folder, create=create), name

    def find(self, path: str) -> os.stat_result | None:
        """Return the status of a file, link or folder; None if there is none.

        Raises:
            BlockedError: a folder around it is a file or a link.
        """
        try:
            folder, name = self._split(path)
            return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def examine(self, path: str) -> Entry | None:
        """Return the status of a file, link or folder, and a link's target; None without one.

        Raises:
            BlockedError: a folder around it is a file or a link.
        """
        status = self.find(path)
        if status is None or not stat.S_ISLNK(status.st_mode):
            return status and Entry(path, status)
        return Entry(path, status, self.read_link(path))

    def open(self, path: str) -> BufferedReader:
        """Open a regular file for reading.

        Raises:
            BlockedError: a folder around it is a file or a link.
            OSError: it is missing, or not a regular file.
        """
        folder, name = self._split(path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        handle = os.open(name, flags, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise UnreadableError(errno.EINVAL, "not a regular file", str(self.root / path))
        return os.fdopen(handle, "rb")

    def read_link(self, path: str) -> str:
        """Return the target of a link."""
        folder, name = self._split(path)
        return os.readlink(name, dir_fd=folder)

    def list_below(self, path: str) -> list[str]:
        """Return the paths of everything in a folder that is not a folder itself."""
        return [one.path for one in walk(self.root, path) if not one.is_folder]

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if it does not exist."""
        try:
            return os.listdir(self._open(folder, create=False))  # noqa: PTH208  of a handle
        except FileNotFoundError:
            return []

    # --- writing ------------------------------------------------------------------------------

    @contextmanager
    def replacing(self, path: str, temporary: str, *, mode: int) -> Iterator[BinaryIO]:
        """Yield a file that replaces another at the end of the block, unless that raises.

        Args:
            path: the file; folders around it are created.
            temporary: a name in the same folder; what has it is replaced.
            mode: permissions of the file.
        """
        folder, name = self._split(path, create=True)
        folder = os.dup(folder)  # the block may use other folders
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                handle = os.open(temporary, flags, mode, dir_fd=folder)
            except FileExistsError:  # of a process that was killed
                _unlink(temporary, folder)
                handle = os.open(temporary, flags, mode, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    yield file
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink(temporary, folder)
                raise
        finally:
            os.close(folder)

    def append(self, path: str) -> BinaryIO:
        """Open a file for reading and writing, at its end; folders around it are created."""
        folder, name = self._split(path, create=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(name, flags, 0o600, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return os.fdopen(handle, "ab")

    def rename(self, path: str, name: str) -> None:
        """Give a file another name in its folder, where it replaces what has that name."""
        folder, old = self._split(path)
        os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def move(self, path: str, target: str, *, mode: int) -> None:
        """Move a file to another folder, where it replaces what has its name.

        Args:
            path: the file.
            target: its new path; folders around it are created.
            mode: its permissions.
        """
        with self.open(path) as file:
            os.fchmod(file.fileno(), mode)
        folder, old = self._split(path)
        folder = os.dup(folder)  # that of the target may be another one
        try:
            other, new = self._split(target, create=True)
            os.rename(old, new, src_dir_fd=folder, dst_dir_fd=other)
        finally:
            os.close(folder)

    def link(self, path: str, target: str, temporary: str) -> None:
        """Create a symbolic link, which replaces a file or link; see `replacing`."""
        folder, name = self._split(path, create=True)
        _unlink(temporary, folder)
        os.symlink(target, temporary, dir_fd=folder)
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _unlink(temporary, folder)
            raise

    def remove(self, path: str) -> None:
        """Remove a file or link if it exists."""
        with contextlib.suppress(FileNotFoundError, BlockedError):
            folder, name = self._split(path)
            _unlink(name, folder)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder and those around it, as far as they are empty."""
        with contextlib.suppress(OSError, BlockedError):
            for path in (folder, *reversed(list(folders(folder)))):
                above, name = self._split(path)
                os.rmdir(name, dir_fd=above)
                self._keep("", self._top)  # the handle of a folder that is gone is no use


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


@contextmanager
def naming_folder(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into one that names a folder.

    Raises:
        UnavailableError: its disk or quota is full, or it cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UnavailableError(
                f"no space left in {folder}: {error.strerror}",
                hint=f"free space there, then run the same command again: df -h '{folder}'",
            ) from error
        about = f" ({error.filename})" if error.filename else ""
        raise UnavailableError(
            f"cannot use {folder}: {error.strerror}{about}",
            hint=f"check its permissions, or choose another folder: ls -ld '{folder}'",
        ) from error
