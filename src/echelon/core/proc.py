"""Processes: what /proc shows of them, and a process that ends with its parent."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_TICKS = os.sysconf("SC_CLK_TCK")
_TAIL = 1 << 16
"""When NCCL aborts a process, its message is followed by every thread's stack, twice."""
_RECENT_S = 30.0
"""How long an OOM kill explains an exit: a large process takes a while to exit, and a DataLoader
looks for dead workers every five seconds."""


def die_with(parent: int, number: int) -> None:
    """Have the kernel send us a signal when our parent exits, for whatever reason.

    Args:
        parent: its pid; if it has exited already, the signal is sent at once.
        number: the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def count_cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def sample_process(pid: int, proc: Path = Path("/proc")) -> tuple[str, float]:
    """Return a process's state (R, S, D, T, Z; X if it has exited) and its main thread's CPU time.

    The scheduler counts nanoseconds, `stat` only ticks, which a short interruption of a wait does
    not show.
    """
    process = proc / str(pid)
    if not (fields := read_stat(process)):
        return "X", 0.0
    try:
        ran = (process / "task" / str(pid) / "schedstat").read_text().split()
        return fields[0], int(ran[0]) / 1e9
    except OSError:  # a kernel may lack schedstat
        ticks = int(fields[11]) + int(fields[12])
        return (fields[0], ticks / _TICKS) if process.exists() else ("X", 0.0)


def read_stat(process: Path) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    # The name before them is in parentheses, and may itself contain parentheses.
    return read_text(process / "stat").rpartition(") ")[2].split()


def start_time(pid: int) -> str:
    """Return when a process started, in clock ticks; empty if it is gone or a zombie."""
    fields = read_stat(Path(f"/proc/{pid}"))
    return "" if not fields or fields[0] in "ZX" else fields[19]


def describe_process(pid: int) -> str:
    """Describe what a process is doing, if it cannot write its stacks."""
    state, cpu_s = sample_process(pid)
    waits = read_text(Path(f"/proc/{pid}/wchan")).strip("\0 \n")
    words = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for storage"}
    doing = words.get(state, f"in state {state}")
    return f"process {pid} is {doing}, CPU time {cpu_s:.1f} s, in {waits or 'its own code'}"


def read_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def tail(path: Path, *, start: int = -1, size: int = _TAIL) -> str:
    """Return the end of a file, or what was added after `start`; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = max(0, end - size) if start < 0 else start
            file.seek(begin)
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


def fit(texts: Mapping[str, str], room: int) -> dict[str, str]:
    """Return the ends of texts, each with an equal share of a message's size.

    They are ASCII (faulthandler escapes the rest), which JSON at most doubles.
    """
    share = room // 2 // max(1, len(texts)) - 16  # a rank's number and punctuation
    return {name: text[-share:] for name, text in texts.items()}


class OomWatch:
    """Tells whether the kernel's OOM killer was just active.

    It counts kills in this process's own cgroup if that can be read, otherwise on the whole
    machine. It must be sampled regularly: an old kill does not explain a new exit.
    """

    def __init__(self, counters: Sequence[Path] | None = None) -> None:
        found = oom_counters() if counters is None else counters
        self._source = next((path for path in found if _count(path) >= 0), None)
        self._seen = _count(self._source) if self._source else 0
        self._last_s = float("-inf")

    def look(self, now_s: float) -> None:
        count = _count(self._source) if self._source else 0
        if count > self._seen:
            self._seen, self._last_s = count, now_s

    def happened(self, now_s: float) -> bool:
        """Tell whether it was active within the last seconds."""
        self.look(now_s)
        return now_s - self._last_s <= _RECENT_S


def oom_counters() -> list[Path]:
    """Return the files that count OOM kills, the most specific first."""
    found = []
    for line in read_text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append(Path(f"/sys/fs/cgroup{path}/memory.events"))
        elif "memory" in controllers.split(","):
            found.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
    return [*found, Path("/proc/vmstat")]


def _count(path: Path) -> int:
    found = [line.split() for line in read_text(path).splitlines()]
    return next((int(words[1]) for words in found if words and words[0] == "oom_kill"), -1)
