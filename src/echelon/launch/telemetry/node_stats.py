"""How busy a node is, from the kernel's tables: CPUs, memory, disks, network, /dev/shm.

Counters are cumulative: samples contain the difference between two readings, per second.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.core.proc import read_stat, read_text

_SECTOR = 512
_TICKS = os.sysconf("SC_CLK_TCK")


@frozen
class Counters:
    """The kernel's counters since boot; in bytes, except for CPU ticks."""

    busy: int = 0
    ticks: int = 0
    """Of all CPUs, busy or not."""
    disk_read: int = 0
    disk_written: int = 0
    received: int = 0
    sent: int = 0


def read_counters(proc: Path = Path("/proc"), blocks: Path = Path("/sys/block")) -> Counters:
    """Read all counters once; those that cannot be read are 0."""
    busy, ticks = parse_processors(read_text(proc / "stat"))
    # Partitions and volumes count the same bytes again: only these entries are devices.
    disks = {path.parent.name for path in blocks.glob("*/device")}
    disk_read, disk_written = parse_disks(read_text(proc / "diskstats"), disks)
    received, sent = parse_network(read_text(proc / "net" / "dev"))
    return Counters(
        busy=busy,
        ticks=ticks,
        disk_read=disk_read,
        disk_written=disk_written,
        received=received,
        sent=sent,
    )


def rates(before: Counters, after: Counters, elapsed_s: float) -> dict[str, float]:
    """Return the rates between two readings: a share of all CPUs, and bytes per second."""
    ticks = after.ticks - before.ticks
    return {
        "cpu": max(0.0, (after.busy - before.busy) / ticks) if ticks > 0 else 0.0,
        "disk_read": _rate(before.disk_read, after.disk_read, elapsed_s),
        "disk_written": _rate(before.disk_written, after.disk_written, elapsed_s),
        "received": _rate(before.received, after.received, elapsed_s),
        "sent": _rate(before.sent, after.sent, elapsed_s),
    }


def _rate(before: int, after: int, elapsed_s: float) -> float:
    """Return a counter's rate; 0 if the counter was reset."""
    return max(0, after - before) / elapsed_s if elapsed_s > 0 else 0.0


def read_memory(proc: Path = Path("/proc"), shared: Path = Path("/dev/shm")) -> dict[str, float]:  # noqa: S108
    """Return used and total memory, and the same for /dev/shm, in bytes."""
    found = parse_memory(read_text(proc / "meminfo"))
    try:
        there = os.statvfs(shared)
    except OSError:
        return found
    size = there.f_blocks * there.f_frsize
    return {**found, "shm": float(size - there.f_bfree * there.f_frsize), "shm_size": float(size)}


# --- parsing: pure ----------------------------------------------------------------------------


def parse_processors(text: str) -> tuple[int, int]:
    """Return busy and total ticks from `/proc/stat`."""
    words = next((line.split()[1:] for line in text.splitlines() if line.startswith("cpu ")), [])
    # The first eight: guest time is already included in them. Idle and iowait are not busy.
    ticks = [int(word) for word in words[:8]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def parse_memory(text: str) -> dict[str, float]:
    """Return used and total memory from `/proc/meminfo`, in bytes; available counts as unused."""
    fields = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in text.splitlines())
        if name in ("MemTotal", "MemAvailable")
    }
    whole = fields.get("MemTotal", 0)
    return {"mem": float(whole - fields.get("MemAvailable", whole)), "mem_size": float(whole)}


def parse_disks(text: str, disks: Collection[str]) -> tuple[int, int]:
    """Return bytes read from and written to these disks, from `/proc/diskstats`."""
    read = written = 0
    for words in map(str.split, text.splitlines()):
        if len(words) >= 10 and words[2] in disks:
            read += int(words[5]) * _SECTOR
            written += int(words[9]) * _SECTOR
    return read, written


def parse_network(text: str) -> tuple[int, int]:
    """Return bytes received and sent on all interfaces but the loopback, from `/proc/net/dev`."""
    received = sent = 0
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and name.strip() != "lo" and len(words) >= 9:
            received += int(words[0])
            sent += int(words[8])
    return received, sent


@dataclass(frozen=True, slots=True)
class Burned:
    """CPU time and memory of a process."""

    group: int
    ticks: int
    mem: float
    """Resident bytes; shared pages count for each process."""


def read_burned(groups: Collection[int], proc: Path = Path("/proc")) -> dict[int, Burned]:
    """Return the use of each process in these process groups, by pid. Slow."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            fields = read_stat(entry)
            if fields and int(fields[2]) in groups:
                pid, ticks = int(entry.name), int(fields[11]) + int(fields[12])
                found[pid] = Burned(int(fields[2]), ticks, process_memory(pid, proc))
    return found


def cores_by_group(
    before: Mapping[int, Burned], after: Mapping[int, Burned], elapsed_s: float
) -> dict[int, float]:
    """Return how many CPUs each group kept busy; a new process counts from its start."""
    used: dict[int, float] = {}
    for pid, now in after.items():
        ticks = now.ticks - (before[pid].ticks if pid in before else 0)
        used[now.group] = used.get(now.group, 0.0) + max(0, ticks) / _TICKS / elapsed_s
    return used


def memory_by_group(burned: Mapping[int, Burned]) -> dict[int, float]:
    """Return the memory of each group: with data loaders, much more than the rank's own."""
    held: dict[int, float] = {}
    for one in burned.values():
        held[one.group] = held.get(one.group, 0.0) + one.mem
    return held


def process_memory(pid: int, proc: Path = Path("/proc")) -> float:
    """Return a process's resident memory in bytes; 0 if it has exited."""
    words = read_text(proc / str(pid) / "statm").split()
    return float(int(words[1]) * os.sysconf("SC_PAGE_SIZE")) if len(words) > 1 else 0.0
