"""Run a program with a time limit, and end everything that it started.

Unlike `Shell.run` in a thread, this can be cancelled.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.core.proc import read_stat, tail
from echelon.core.shell import Shell, signal_group

GRACE_S = 10.0
"""Time between SIGTERM and SIGKILL; an srun that is killed cannot end its step."""
_GLANCE_S = 0.02
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
        async with asyncio.timeout(limit_s):
            code = await _end_of(pid)
    except TimeoutError:
        pass
    finally:
        if code is None:
            await asyncio.shield(_end(pid, grace_s))
    return code, tail(log)


async def _end_of(pid: int) -> int:
    while True:
        if (code := _collect(pid)) is not None:
            return code
        await asyncio.sleep(_GLANCE_S)


def _collect(pid: int) -> int | None:
    gone, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if gone else None


async def _end(pid: int, grace_s: float) -> None:
    signal_group(pid, signal.SIGTERM)
    if await _is_over(pid, grace_s):
        return
    # Descendants may be in process groups of their own, and cannot be found once it has ended.
    for child in find_descendants(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    signal_group(pid)
    await _is_over(pid, _KILLED_S)


async def _is_over(pid: int, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            await _end_of(pid)
    except TimeoutError:
        return False
    return True


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
