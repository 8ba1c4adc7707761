"""Find and end all processes of a sandbox.

Processes are found in the kernel's process table. There is no list of pids that could become stale,
and an `up` that was killed half-way needs no clean exit. A process belongs to a sandbox if its
environment names the sandbox's directory (set by us) or its cluster (set by Slurm for jobs), or if
it shares a network namespace with such a process.

Any user can put these variables on a process of their own; `down` then kills that process, and
nothing else. Only processes that the sandbox's owner runs in our own user namespace (`trusted`) are
entered, signalled otherwise or used to decide anything.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.core.proc import read_stat
from echelon.errors import TimedOutError
from echelon.sandbox.layout import Layout

MARK = "ECHELON_SANDBOX"
HOST = "SLURMD_NODENAME"
"""Slurm's variable for a task's node; set on our daemons as well."""

# How a process calls itself that was started by slurmd or sshd; the last two since OpenSSH 9.8.
_TITLES = ("slurmstepd:", "sshd:", "sshd-session:", "sshd-auth:")


@frozen
class Process:
    pid: int
    argv: tuple[str, ...]
    host: str
    """Its simulated host, according to its environment."""
    network: int
    """Inode of its network namespace; 0 if it cannot be read."""
    trusted: bool
    """Whether the sandbox's owner runs it, in our user namespace."""
    group: int = 0
    """Its process group; 0 if it cannot be read."""

    @property
    def program(self) -> str:
        return self.argv[0].rpartition("/")[2] if self.argv else ""


def mark(layout: Layout, host: str) -> dict[str, str]:
    """Return the environment variables that mark a process as part of this sandbox."""
    return {MARK: str(layout.root), HOST: host}


@frozen
class Scan:
    """One pass over the kernel's process table, which changes during the pass."""

    ours: tuple[Process, ...]
    groups: frozenset[int]
    """Process groups that contain only processes of the sandbox."""
    dead: frozenset[int]
    """Pids that ended during the pass, or are zombies."""


def find_processes(
    layout: Layout, *, networks: Iterable[int] = (), proc: Path = Path("/proc")
) -> list[Process]:
    """Return all running processes of the sandbox, except this one and its ancestors.

    Args:
        layout: the sandbox's files.
        networks: additional network namespaces known to belong to the sandbox.
        proc: where procfs is mounted.
    """
    return list(scan_processes(layout, networks=networks, proc=proc).ours)


def scan_processes(
    layout: Layout, *, networks: Iterable[int] = (), proc: Path = Path("/proc")
) -> Scan:
    """Make one pass; arguments as for `find_processes`."""
    marked: list[Process] = []
    others: list[Process] = []
    dead = set()
    spared = set(_ancestry(proc, os.getpid()))
    foreign_groups = {0, *map(_group, spared)}
    entries = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    # The newest first: they may be the shortest-lived.
    for entry in sorted(entries, key=lambda entry: -int(entry.name)):
        if int(entry.name) in spared:
            continue
        if (seen := _look(entry, layout)) is not None:
            (marked if seen[0] else others).append(seen[1])
        else:
            dead.add(int(entry.name))
    known = {*networks, *find_networks(layout, marked, proc=proc)}
    ours = marked + [process for process in others if process.network in known]
    foreign_groups |= {process.group for process in others if process.network not in known}
    groups = frozenset(process.group for process in ours) - foreign_groups
    return Scan(ours=tuple(ours), groups=groups, dead=frozenset(dead))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def find_networks(
    layout: Layout, processes: Iterable[Process], *, proc: Path = Path("/proc")
) -> set[int]:
    """Return the network namespaces that belong to the sandbox."""
    trusted = [process for process in processes if process.trusted]
    holders = {process.network for process in trusted if is_holder(process, layout)}
    # 0 means unreadable. The machine's own namespace and ours also contain other processes.
    shared = {0, _namespace(proc / "1", "net"), own_network(proc)}
    return (holders - {0}) | ({process.network for process in trusted} - shared)


def is_holder(process: Process, layout: Layout) -> bool:
    """Tell whether it keeps a simulated host's namespaces alive: `bash boot.sh HOST`."""
    boot = ("bash", str(layout.boot))
    return process.trusted and process.argv[:2] == boot and len(process.argv) == 3


def own_network(proc: Path = Path("/proc")) -> int:
    """Return the network namespace of the current process."""
    return _namespace(proc / "self", "net")


def _owner(layout: Layout) -> int:
    try:
        return layout.root.lstat().st_uid
    except FileNotFoundError:
        return os.geteuid()


def _look(entry: Path, layout: Layout) -> tuple[bool, Process] | None:
    """Return whether a process is marked, and the process.

    None if it has ended, is a zombie, or cannot be read.
    """
    try:
        argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        if not argv:
            return None  # a zombie or kernel thread; where init reaps nothing there are thousands
        environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        uid = entry.stat().st_uid
    except OSError:
        return None
    if read_stat(entry)[:1] in ([], ["Z"], ["X"]):
        return None
    marks = {f"{MARK}={layout.root}", f"SLURM_CLUSTER_NAME={layout.cluster_name}"}
    host = next((v.partition("=")[2] for v in environment if v.startswith(f"{HOST}=")), "")
    marked = not marks.isdisjoint(environment)
    if argv[0].startswith(_TITLES):
        # It overwrites its environment with its title, but keeps its daemon's log open.
        log = _open_log(entry, layout)
        node = log.removeprefix("slurmd-").removesuffix(".log")
        host, marked = "" if node == log else node, bool(log)
    # Root in another user namespace has no privileges here, and may have faked these files.
    same_powers = _namespace(entry, "user") == _namespace(entry.parent / "self", "user")
    return marked, Process(
        pid=int(entry.name),
        argv=tuple(argv),
        host=host,
        network=_namespace(entry, "net"),
        group=_group(int(entry.name)),
        trusted=uid == _owner(layout) and same_powers,
    )


def _open_log(entry: Path, layout: Layout) -> str:
    """Return the name of the sandbox's log that a process has open, or ''."""
    try:
        targets = [
            Path(str(link.readlink()).removesuffix(" (deleted)"))
            for link in (entry / "fd").iterdir()
        ]
    except OSError:
        return ""
    return next((path.name for path in targets if path.parent == layout.logs), "")


def _namespace(entry: Path, kind: str) -> int:
    try:
        return (entry / "ns" / kind).stat().st_ino
    except OSError:
        return 0


def _ancestry(proc: Path, pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        pid = int((read_stat(proc / str(pid)) or ["", "0"])[1])


_UNSETTLED_LOOKS = 20


def end_sandbox_processes(
    layout: Layout, *, host: str | None = None, timeout_s: float = 30.0
) -> None:
    """Kill all processes of the sandbox, or of one host, and wait until they have ended.

    Raises:
        TimedOutError: a process does not end, or new ones start faster than they can be killed.
    """
    deadline = time.monotonic() + timeout_s
    networks: set[int] = set()
    dead: frozenset[int] | None = None
    unsettled = 0
    # A job may fork during a pass, and the child may lack the mark: keep all networks seen so far.
    while True:
        scan = scan_processes(layout, networks=networks)
        networks |= find_networks(layout, scan.ours)
        pids = [process.pid for process in scan.ours if host is None or process.host == host]
        if not pids:
            # A process that forks and exits may escape every pass, so a pass counts only if no
            # process died during it. On a busy machine some process always does; after this many
            # passes, one of ours would have been found.
            unsettled += 1
            if (dead is not None and scan.dead <= dead) or unsettled > _UNSETTLED_LOOKS:
                return
            dead = scan.dead
            continue
        if host is None:
            # Signals to single pids cannot catch a chain of processes that each fork the next and
            # exit. The kernel signals a group atomically, between two forks.
            for group in scan.groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimedOutError(
                f"processes of the sandbox still run after {timeout_s:g} s: {pids[:5]}",
                hint=f"find what starts them: ps -o pid,ppid,args -p {pids[0]}",
            )
        end_processes(pids)


def end_processes(pids: Iterable[int], *, timeout_s: float = 10.0) -> None:
    """Kill processes and wait until they have ended.

    Raises:
        TimedOutError: a process did not end, such as one blocked in the kernel.
    """
    deadline = time.monotonic() + timeout_s
    handles = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            handles[pid] = os.pidfd_open(pid)
    try:
        for handle in handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for pid, handle in handles.items():
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimedOutError(
                    f"process {pid} did not end after SIGKILL",
                    hint=f"see where it is blocked: cat /proc/{pid}/stack",
                )
            with suppress(ChildProcessError):  # not our child
                os.waitpid(pid, os.WNOHANG)
    finally:
        for handle in handles.values():
            os.close(handle)
