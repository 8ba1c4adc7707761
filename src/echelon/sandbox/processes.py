"""Which processes belong to a sandbox, and how to be sure that they are gone.

There is no list of pids to go stale, and an `up` that was killed half-way needs no clean exit:
every process we start carries the sandbox's folder in its environment, Slurm puts the cluster's
name into its jobs' own, and whoever shares a network namespace with one of these belongs as
well. The kernel's table is the truth.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import TimedOutError
from echelon.sandbox.config import Layout

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


def mark(layout: Layout, host: str) -> dict[str, str]:
    """Return the variables that make a process one of this sandbox's."""
    return {MARK: str(layout.root), HOST: host}


def find_processes(layout: Layout, *, proc: Path = Path("/proc")) -> list[Process]:
    """Return all living processes of the sandbox, but for this one and its parents."""
    ours: list[Process] = []
    others: list[Process] = []
    marks = {f"{MARK}={layout.root}", f"SLURM_CLUSTER_NAME={layout.cluster_name}"}
    spared = set(_ancestry(proc, os.getpid()))
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        if (seen := _look(entry)) is None:
            continue
        environment, process = seen
        (ours if marks & environment else others).append(process)
    # Network 0 is one we may not see; the machine's own holds everybody.
    networks = {process.network for process in ours} - {
        0,
        _network(proc / "1"),
        _network(proc / "self"),
    }
    return ours + [process for process in others if process.network in networks]


def _look(entry: Path) -> tuple[set[str], Process] | None:
    """Return a process and its environment; None when it is gone, a zombie, or not ours to see."""
    try:
        environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return None
    if _state(entry) in ("Z", "X", ""):
        return None
    host = next((v.partition("=")[2] for v in environment if v.startswith(f"{HOST}=")), "")
    return set(environment), Process(
        pid=int(entry.name), argv=tuple(argv), host=host, network=_network(entry)
    )


def _state(entry: Path) -> str:
    try:
        # The name in parentheses may hold anything, parentheses too.
        return (entry / "stat").read_text(errors="replace").rpartition(") ")[2][:1]
    except OSError:
        return ""


def _network(entry: Path) -> int:
    try:
        return (entry / "ns" / "net").stat().st_ino
    except OSError:
        return 0


def _ancestry(proc: Path, pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
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
