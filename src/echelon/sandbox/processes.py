"""Which processes belong to a sandbox, and how to be sure that they are gone.

There is no list of pids to go stale, and an `up` that was killed half-way needs no clean exit:
every process we start carries the sandbox's folder in its environment, Slurm puts the cluster's
name into its jobs' own, and whoever shares a network namespace with one of ours belongs as well.
The kernel's table is the truth.

Anybody can put a mark on a process of his own. He then gets it killed by `down`, and nothing more:
what we enter, signal or draw conclusions from is only what the sandbox's owner runs, in our own
user namespace (`trusted`).
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import TimedOutError
from echelon.sandbox.layout import Layout

MARK = "ECHELON_SANDBOX"
HOST = "SLURMD_NODENAME"
"""Slurm's own variable for the node a task is on; our daemons carry it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    argv: tuple[str, ...]
    host: str
    """The simulated host it is on, as far as its environment says."""
    network: int
    """Identity of its network namespace; 0 where we may not look."""
    trusted: bool
    """Whether the sandbox's owner runs it, with the owner's own powers and no others."""
    group: int = 0
    """Its process group; 0 where we may not look."""

    @property
    def program(self) -> str:
        return self.argv[0].rpartition("/")[2] if self.argv else ""


def mark(layout: Layout, host: str) -> dict[str, str]:
    """Return the variables that make a process one of this sandbox's."""
    return {MARK: str(layout.root), HOST: host}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """One look through the kernel's table, which changes while one looks."""

    ours: tuple[Process, ...]
    groups: frozenset[int]
    """Process groups in which there is nobody but ours."""
    dead: frozenset[int]
    """Pids that vanished meanwhile, or wait for their parent as zombies."""


def find_processes(
    layout: Layout, *, networks: Iterable[int] = (), proc: Path = Path("/proc")
) -> list[Process]:
    """Return all living processes of the sandbox, but for this one and its parents.

    Args:
        layout: the sandbox's files.
        networks: network namespaces known to be the sandbox's, beside those that are found.
        proc: the kernel's table.
    """
    return list(scan_processes(layout, networks=networks, proc=proc).ours)


def scan_processes(
    layout: Layout, *, networks: Iterable[int] = (), proc: Path = Path("/proc")
) -> Scan:
    """Look once; arguments as for `find_processes`."""
    marked: list[Process] = []
    others: list[Process] = []
    dead = set()
    spared = set(_ancestry(proc, os.getpid()))
    foreign_groups = {0, *map(_group, spared)}
    entries = [entry for entry in proc.iterdir() if entry.name.isdigit()]
    # The newest first: they may be the soonest to go.
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
    """Return the network namespaces that are the sandbox's own."""
    trusted = [process for process in processes if process.trusted]
    holders = {process.network for process in trusted if is_holder(process, layout)}
    # Network 0 is one we may not see; the machine's own holds everybody, and so may ours.
    shared = {0, _namespace(proc / "1", "net"), own_network(proc)}
    return (holders - {0}) | ({process.network for process in trusted} - shared)


def is_holder(process: Process, layout: Layout) -> bool:
    """Tell whether it holds the namespaces of a simulated host: `bash boot.sh HOST`."""
    boot = ("bash", str(layout.boot))
    return process.trusted and process.argv[:2] == boot and len(process.argv) == 3


def own_network(proc: Path = Path("/proc")) -> int:
    """Return the network namespace of this very process."""
    return _namespace(proc / "self", "net")


def _owner(layout: Layout) -> int:
    try:
        return layout.root.lstat().st_uid
    except FileNotFoundError:
        return os.geteuid()


def _look(entry: Path, layout: Layout) -> tuple[bool, Process] | None:
    """Return whether a process is marked, and the process.

    None when it is gone, a zombie, or not ours to see.
    """
    try:
        argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        if not argv:
            return (
                None  # a zombie or the kernel's own: where init reaps nothing there are thousands
            )
        environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        uid = entry.stat().st_uid
    except OSError:
        return None
    if _state(entry) in ("Z", "X", ""):
        return None
    marks = {f"{MARK}={layout.root}", f"SLURM_CLUSTER_NAME={layout.cluster_name}"}
    host = next((v.partition("=")[2] for v in environment if v.startswith(f"{HOST}=")), "")
    marked = not marks.isdisjoint(environment)
    if argv and argv[0].startswith("slurmstepd:"):
        # It writes its title over its environment; but the log of its slurmd is open.
        log = _open_log(entry, layout)
        host, marked = log.removeprefix("slurmd-").removesuffix(".log"), bool(log)
    # Root of another user namespace is nobody here, and the files it shows may be made up.
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
    """Return the name of the sandbox's log that a process has open, if it has."""
    try:
        targets = [
            Path(str(link.readlink()).removesuffix(" (deleted)"))
            for link in (entry / "fd").iterdir()
        ]
    except OSError:
        return ""
    return next((path.name for path in targets if path.parent == layout.logs), "")


def _state(entry: Path) -> str:
    try:
        # The name in parentheses may hold anything, parentheses too.
        return (entry / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def _namespace(entry: Path, kind: str) -> int:
    try:
        return (entry / "ns" / kind).stat().st_ino
    except OSError:
        return 0


def _ancestry(proc: Path, pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            return


_UNSETTLED_LOOKS = 20


def end_sandbox_processes(
    layout: Layout, *, host: str | None = None, timeout_s: float = 30.0
) -> None:
    """Kill everything of the sandbox, or of one of its hosts, and return when nothing is left.

    Raises:
        TimedOutError: something will not go, or is started faster than it can be ended.
    """
    deadline = time.monotonic() + timeout_s
    networks: set[int] = set()
    dead: frozenset[int] | None = None
    unsettled = 0
    # A job may fork while we look, and its child carry no mark: the networks seen once are kept.
    while True:
        scan = scan_processes(layout, networks=networks)
        networks |= find_networks(layout, scan.ours)
        pids = [process.pid for process in scan.ours if host is None or process.host == host]
        if not pids:
            # Who forks and goes may never be met alive: a look counts if nobody died meanwhile. On
            # a busy machine somebody always does; what is ours would have been met by then.
            unsettled += 1
            if (dead is not None and scan.dead <= dead) or unsettled > _UNSETTLED_LOOKS:
                return
            dead = scan.dead
            continue
        if host is None:
            # A chain of processes, each forking the next and going, outruns one who signals them
            # singly. The kernel signals a group all at once, between two forks.
            for group in scan.groups:
                _end_group(group)
        if time.monotonic() > deadline:
            raise TimedOutError(
                f"processes of the sandbox are still there after {timeout_s:g} s: {pids[:5]}",
                hint=f"see what starts them: ps -o pid,ppid,args -p {pids[0]}",
            )
        end_processes(pids)


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def end_processes(pids: Iterable[int], *, timeout_s: float = 10.0) -> None:
    """Kill them and return when they are gone.

    Raises:
        TimedOutError: the kernel would not let one go.
    """
    deadline = time.monotonic() + timeout_s
    handles = {}
    for pid in pids:
        try:
            handles[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
    try:
        for handle in handles.values():
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid, handle in handles.items():
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimedOutError(
                    f"process {pid} was killed but does not go away",
                    hint=f"see what it waits for: cat /proc/{pid}/stack",
                )
            _collect(pid)
    finally:
        for handle in handles.values():
            os.close(handle)


def _collect(pid: int) -> None:
    """Take the exit status, if it was a child of this very process."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
