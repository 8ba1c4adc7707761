"""Run a program with a time limit, and end everything that it started.

Unlike `Shell.run` in a thread, this can be cancelled.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.core.proc import read_stat, tail
from echelon.core.shell import Shell, signal_group

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL; an srun that is killed cannot end its step."""
_INTERVAL_S = 0.02
_KILLED_S = 60.0


async def run_program(
    shell: Shell,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    limit_s: float,
    grace_s: float = GRACE_S,
) -> tuple[int | None, str]:
    """Run a program with a time limit; return its exit code, or None on time-out, and its output.

    Args:
        shell: starts the program.
        argv: the program.
        env: its environment.
        log: file for its output.
        limit_s: time after which it receives SIGTERM.
        grace_s: additional time after which it and its descendants are killed.
    """
    pid = shell.start(argv, log=log, env=env)
    code = None
    try:
        code = await _wait(pid, limit_s)
    finally:
        if code is None:
            await asyncio.shield(_end(pid, grace_s))
    return code, tail(log)


async def _wait(pid: int, limit_s: float) -> int | None:
    """Return the exit code of a child; None if it still runs at the limit."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if (code := _collect(pid)) is not None:
            return code
        await asyncio.sleep(_INTERVAL_S)
    return None


def _collect(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


async def _end(pid: int, grace_s: float) -> None:
    signal_group(pid, signal.SIGTERM)
    if await _wait(pid, grace_s) is not None:
        return
    # Descendants may be in process groups of their own, and cannot be found once it has ended.
    for child in find_descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    signal_group(pid)
    await _wait(pid, _KILLED_S)


def find_descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the pids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*/stat"):
        if fields := read_stat(path.parent):
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, left = [], [pid]
    while left:
        own = children.get(left.pop(), [])
        found += own
        left += own
    return found
