"""What is below a folder: its entries, one walk over them, and paths that others name in it.

Others may write to the folder meanwhile. Each folder is opened relative to the one above and
without following links, so that a link which appears meanwhile leads nowhere.
"""

import contextlib
import errno
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Never, TypeVar

from echelon.core.terminal_escape import in_one_line
from echelon.errors import ConflictError, NotPermittedError

RECENT_NS = 2 * 10**9
"""A file changed this shortly before it was read may change again without a sign: file systems
round times, and clocks of servers differ."""
THREADS = 16
"""Operations on storage that wait at the same time: each may take milliseconds."""
_MOST_PATH_BYTES = 4096
_MOST_NAME_BYTES = 255
_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER = _TOP | os.O_NOFOLLOW
_NO_FOLDER = (errno.ENOTDIR, errno.ELOOP)
"""A file or a link."""

T = TypeVar("T")
R = TypeVar("R")
_REPLACED = (errno.ENOENT, errno.EINVAL)
"""An entry does not exist any more, or is no link any more."""


# --- paths from elsewhere ---------------------------------------------------------------------


def is_inner(path: object) -> bool:
    """Tell whether a value is a path below a folder: relative, without `..`. Pure."""
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    names = encoded.split(b"/")
    return len(encoded) < _MOST_PATH_BYTES and all(
        name not in (b"", b".", b"..") and len(name) <= _MOST_NAME_BYTES for name in names
    )


def check_paths(paths: Iterable[object], inner_folders: Iterable[object] = ()) -> None:
    """Check the paths of a manifest from elsewhere. Pure.

    Args:
        paths: its files and links.
        inner_folders: its folders, if it lists them.

    Raises:
        NotPermittedError: one leads elsewhere, is there twice, or goes through a file or link.
    """
    files, known = list(paths), set[str]()
    for path in (*files, *inner_folders):
        if not is_inner(path) or path in known:
            raise refuse_path(path)
        known.add(str(path))
    solid = set(files)
    for path in known:
        if not solid.isdisjoint(folders(path)):
            raise refuse_path(path)


def folders(path: str) -> Iterator[str]:
    """Yield the folders around a path, the outermost first. Pure."""
    at = path.find("/")
    while at > 0:
        yield path[:at]
        at = path.find("/", at + 1)


def refuse_path(path: object) -> NotPermittedError:
    """Return the error for a path that leads out of its folder."""
    return NotPermittedError(
        f"refused the path '{in_one_line(str(path)[:200])}': it leads out of the folder",
        hint="Echelon sends and records no such path; ask where the run or host is from",
    )


# --- entries ----------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """What changes when a file does."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def is_recent(self) -> bool:
        """Tell whether the file may change again without a sign."""
        return max(self.mtime_ns, self.ctime_ns) > time.time_ns() - RECENT_NS


class Entry(NamedTuple):
    """What is at a path below a folder."""

    path: str
    status: os.stat_result
    target: str = ""
    """Of a link."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def mode(self) -> int:
        return self.status.st_mode

    @property
    def stamp(self) -> Stamp:
        return Stamp.of(self.status)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file; not a pipe, socket or device."""
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)

    @property
    def is_executable(self) -> bool:
        """Whether its owner may execute it."""
        return bool(self.status.st_mode & stat.S_IXUSR)


# --- walking ----------------------------------------------------------------------------------


def _fail(error: OSError) -> Never:
    raise error


def walk(
    root: Path,
    below: str = "",
    *,
    enter: Callable[[Entry], bool] = lambda _folder: True,
    on_error: Callable[[OSError], None] = _fail,
    beat: Callable[[], None] | None = None,
) -> Iterator[Entry]:
    """Yield everything below a folder, a folder before what is in it.

    No link is followed, not even one that replaces a folder meanwhile. What vanishes meanwhile is
    left out.

    Args:
        root: the folder; it may be a link.
        below: the path of a folder in it, to begin there.
        enter: tells whether to look into a folder. It is yielded either way, and before.
        on_error: is called if a folder cannot be read, such as the root; it is then left out.
        beat: for storage that is slow: many folders are listed at the same time, and this is called
            for each, as a sign of life.

    Raises:
        OSError: a folder cannot be read, unless there is `on_error`; its `filename` is the full
            path.
    """
    try:
        top = os.open(root, _TOP)
    except OSError as error:
        on_error(error)
        return
    list_one = partial(_list_folder, root, top, on_error)
    try:
        left = [below]
        while left:
            listed: Iterable[Iterable[Entry]] = map(list_one, left)
            if beat:
                listed = for_all(lambda folder: list(list_one(folder)), left, beat)
            left = []
            for entry in chain.from_iterable(listed):
                yield entry
                if stat.S_ISDIR(entry.status.st_mode) and enter(entry):
                    left.append(entry.path)
    finally:
        os.close(top)


def _list_folder(
    root: Path, top: int, on_error: Callable[[OSError], None], folder: str
) -> Iterator[Entry]:
    before = f"{folder}/" if folder else ""
    handle = -1
    try:
        handle = open_folder(root, top, folder)
        with os.scandir(handle) as items:
            for item in items:
                try:
                    status = item.stat(follow_symlinks=False)
                    is_link = stat.S_ISLNK(status.st_mode)
                    target = os.readlink(item.name, dir_fd=handle) if is_link else ""
                except OSError as error:
                    if error.errno in _REPLACED:
                        continue
                    raise
                yield Entry(before + item.name, status, target)
    except (FileNotFoundError, BlockedError):
        pass  # removed or replaced meanwhile
    except OSError as error:
        error.filename = f"{root}/{folder}" if folder else str(root)
        on_error(error)
    finally:
        if handle >= 0:
            os.close(handle)


class BlockedError(ConflictError):
    """A folder is needed where there is a file or a link."""

    def __init__(self, message: str, *, hint: str, path: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path


def open_folder(root: Path, top: int, folder: str, *, create: bool = False) -> int:
    """Open a folder below another one without following links.

    Args:
        root: the upper folder, for errors.
        top: its handle.
        folder: the path below it; empty for the upper folder itself.
        create: create what is missing, accessible by this user alone.

    Raises:
        BlockedError: a part of the path is a file or a link.
    """
    here, names = os.dup(top), folder.split("/") if folder else []
    for number, name in enumerate(names, start=1):
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=here)
            inner = os.open(name, _FOLDER, dir_fd=here)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise _block(root, "/".join(names[:number])) from error
            raise
        finally:
            os.close(here)
        here = inner
    return here


def _block(root: Path, path: str) -> BlockedError:
    full = root / path
    return BlockedError(
        f"{full} is not a folder: it is a file or a link",
        hint=f"remove it, or rename it: mv '{full}' '{full}.old'",
        path=path,
    )


def for_all(
    work: Callable[[T], R], items: Sequence[T], beat: Callable[[], None] = lambda: None
) -> list[R]:
    """Call a function for each item, for many at the same time; return the results in order.

    The threads end with the process: storage that does not respond must not keep it.

    Args:
        work: the function.
        items: what it is called with.
        beat: is called before each call, as a sign of life.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    left = deque(range(len(items)))  # its methods are safe to call from several threads

    def loop() -> None:
        while not errors:
            try:
                number = left.popleft()
            except IndexError:
                return
            try:
                beat()
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
