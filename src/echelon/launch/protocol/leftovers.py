"""What killed processes leave behind on a node, and who removes it.

A killed process removes nothing: files that carry its pid are removed by whoever killed it, and the
folder of an agent that was killed together with its guard by the next agent of the same user. The
shared memory of `multiprocessing` is known to Python's resource tracker alone, a process beside the
rank: it is not killed with its group, for it removes that memory when the others are gone.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from echelon.core.waiting import wait_until

SHARED = Path("/dev/shm")  # noqa: S108  a folder of our own in it
_MAPS = Path("/tmp")  # noqa: S108  where perf looks for them, whatever TMPDIR says
_TRACKER = b"multiprocessing.resource_tracker"
_ROUNDS = 20
"""How often a group is looked at again for processes that were forked meanwhile."""
_LAST_S = 5.0
"""How long trackers may take, at the very end: they wait for processes that are slow to die."""
_LOCK = "agent.lock"
_PREFIX = "echelon-"

Groups = Mapping[int, Sequence[int]]
"""The processes of each process group."""


def list_groups() -> Groups:
    """Look at all processes of this node."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  ranks wait for it
        if name.isdecimal():
            # Reading what /proc says of each would take fifty times as long.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                found.setdefault(os.getpgid(int(name)), []).append(int(name))
    return found


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
        return text.rpartition(") ")[2][0] not in "ZX"
    return False


def end_group(group: int, groups: Groups) -> None:
    """Kill a process group but for its trackers, and remove what its processes leave.

    Args:
        group: which.
        groups: as they were a moment ago.
    """
    members = list(groups.get(group, ()))
    trackers = {pid for pid in members if _is_tracker(pid)}
    if not trackers or not _kill_others(group, members, trackers):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    remove_files(pid for pid in members if pid != group)


def _kill_others(group: int, members: Iterable[int], trackers: set[int]) -> bool:
    """Kill what is no tracker; tell whether that was all there is.

    A process that has been killed forks no more, though it may take a while to go.
    """
    killed: set[int] = set()
    others = set(members) - trackers
    for _ in range(_ROUNDS):
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= others
        fresh = set(list_groups().get(group, ())) - killed
        others = {pid for pid in fresh if not _is_tracker(pid)}
        if not others:
            return True
    return False


def await_trackers(groups: Iterable[int] = ()) -> None:
    """Wait until trackers are done; kill those that are not.

    Args:
        groups: those that they are in; without any, those that we have inherited from dead ranks.
    """
    groups = set(groups)

    def find() -> list[int]:
        known = list_groups() if groups else {0: _list_children()}
        members = [pid for group in groups or {0} for pid in known.get(group, ())]
        return [pid for pid in members if _is_tracker(pid) and _lives(pid)]

    if not wait_until(lambda: not find(), timeout_s=_LAST_S):
        for pid in find():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _list_children() -> list[int]:
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _TRACKER in Path("/proc", str(pid), "cmdline").read_bytes()
    return False


def remove_files(pids: Iterable[int]) -> None:
    """Remove the files that carry the pids of processes which were killed just now.

    Not of such as ended by themselves: `perf report` reads the maps of a program that has ended.
    """
    killed = {str(pid) for pid in pids}
    if not killed:
        return
    for pid in killed:
        _remove(_MAPS / f"perf-{pid}.map")
    with contextlib.suppress(OSError):
        for path in SHARED.iterdir():  # torch_PID_random: shared tensors
            words = path.name.split("_")
            if words[0] == "torch" and len(words) > 2 and words[1] in killed:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a plain file of our own."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            path.unlink()


# --- an agent's folder --------------------------------------------------------------------------


def make_scratch() -> tuple[Path, int]:
    """Make a folder for an agent, in memory where there is room for it; remove those of dead ones.

    Returns:
        the folder, and an open file in it that is locked: while it is open the folder is in use.
    """
    place = SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(place)
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    draft = scratch / f".{_LOCK}"
    lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one either
        fcntl.flock(lock, fcntl.LOCK_EX)
    draft.rename(scratch / _LOCK)  # one that is not locked is never seen by this name
    return scratch, lock


def _sweep(place: Path) -> None:
    """Remove folders of agents that were killed together with their guards."""
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
