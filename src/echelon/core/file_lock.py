"""Locks of files and folders between processes, which the kernel releases with their holder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from echelon.core.waiting import wait_until
from echelon.errors import EchelonError

_LOOK_S = 0.1


@contextmanager
def locked(
    path: Path, busy: EchelonError, *, timeout_s: float = 0.0, required: bool = False
) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, which is created.

    Args:
        path: the file or folder.
        busy: the error to raise if another process holds the lock until the time-out.
        timeout_s: how long to wait.
        required: raise an `OSError` on file systems without locks, instead of going on.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def is_locked() -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # such as folders on NFS
            if required:
                raise
        return True

    try:
        if not wait_until(is_locked, timeout_s=timeout_s, interval_s=_LOOK_S):
            raise busy
        yield
    finally:
        os.close(handle)
