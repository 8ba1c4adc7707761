"""What killed processes leave behind on a node, and who removes it.

A killed process cleans up nothing. Files with its pid in their name are removed by the process that
killed it. Only Python's resource tracker, a process beside the rank, knows the shared memory of
`multiprocessing`: it is not killed with its group, because it removes that memory when the other
processes have exited. `agent/scratch.py` removes the folders of killed agents.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from echelon.core.proc import read_stat
from echelon.core.waiting import wait_until

SHARED = Path("/dev/shm")  # noqa: S108  we create a private folder in it
MAPS = Path("/tmp")  # noqa: S108  perf uses it regardless of TMPDIR
_TRACKER = b"multiprocessing.resource_tracker"
_ROUNDS = 20
"""How often a group is checked again for processes that were forked meanwhile."""
_LAST_S = 15.0
"""How long trackers may take at the end: they wait for processes that are slow to die."""

Groups = Mapping[int, Sequence[int]]
"""The processes of each process group."""


def list_groups() -> Groups:
    """List all processes of this node by process group."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  faster, and ranks wait for it
        if name.isdecimal():
            # Reading a file in /proc for each would take fifty times as long.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                found.setdefault(os.getpgid(int(name)), []).append(int(name))
    return found


def _lives(pid: int) -> bool:
    return read_stat(Path("/proc", str(pid)))[:1] not in ([], ["Z"], ["X"])


def end_group(group: int, groups: Groups) -> None:
    """Kill a process group except for its trackers, and remove what its processes leave.

    Args:
        group: the process group.
        groups: all process groups, as listed a moment ago.
    """
    members = list(groups.get(group, ()))
    trackers = {pid for pid in members if _is_tracker(pid)}
    if not trackers or not _kill_others(group, members, trackers):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    remove_files(pid for pid in members if pid != group)


def end_groups(groups: Collection[int]) -> None:
    """Kill process groups except for their trackers, and remove what their processes leave."""
    found = list_groups() if groups else {}
    for group in groups:
        end_group(group, found)
    remove_files(groups)


def _kill_others(group: int, members: Iterable[int], trackers: set[int]) -> bool:
    """Kill all processes other than trackers; tell whether none is left.

    A process that received SIGKILL does not fork any more, though it may take a while to exit.
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
    """Wait until trackers have exited; kill those that have not in time.

    Args:
        groups: their process groups; without any, the trackers that dead ranks left to us.
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
    """Remove files with the pids of processes that were just killed.

    Not for processes that exited by themselves: `perf report` reads their maps afterwards.
    """
    killed = {str(pid) for pid in pids}
    if not killed:
        return
    for pid in killed:
        _remove(MAPS / f"perf-{pid}.map")
    with contextlib.suppress(OSError):
        for path in SHARED.iterdir():  # torch_PID_random: shared tensors
            words = path.name.split("_")
            if words[0] == "torch" and len(words) > 2 and words[1] in killed:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a regular file that belongs to us."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            path.unlink()
