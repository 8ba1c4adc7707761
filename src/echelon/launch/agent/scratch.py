"""The scratch folder of an agent, in memory: sockets, clocks and notes of its processes.

The agent removes its folder, or else its guard. If both were killed, the next agent of the same
user does.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from echelon.launch.zygote.leftovers import SHARED

_LOCK = "agent.lock"
_PREFIX = "echelon-"


def make_scratch() -> tuple[Path, int]:
    """Create an agent's scratch folder, in memory if possible; remove those of dead agents.

    Returns:
        the folder, and a locked open file in it: while that is open, the folder is in use.
    """
    place = SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(place)
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    draft = scratch / f".{_LOCK}"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: others cannot lock it either
        fcntl.flock(lock, fcntl.LOCK_EX)
    draft.rename(scratch / _LOCK)  # under this name it is always locked
    return scratch, lock


def _sweep(place: Path) -> None:
    """Remove the folders of agents that were killed together with their guards."""
    for path in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
