"""A program that may take so long and no longer, and that leaves nothing behind.

Unlike `Shell.run` in a thread it can be cancelled.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from echelon.core.shell import Shell
from echelon.launch.sampling import tail

GRACE_S = 10.0
"""What a program gets between being asked to end and being killed: an srun that is killed cannot
end its step."""
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
    """Run a program with a limit; return its exit code, None when it was ended, and what it said.

    Args:
        shell: what starts it.
        argv: the program.
        env: its variables.
        log: for what it says.
        limit_s: after how long it is asked to end,
        grace_s: and after how long from then on it is killed, with all that it has started.
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
    _signal(os.killpg, pid, signal.SIGTERM)
    if await _is_over(pid, grace_s):
        return
    # What it has started may be in groups of its own, and would be nobody's once it is gone.
    for child in find_descendants(pid):
        _signal(os.kill, child, signal.SIGKILL)
    _signal(os.killpg, pid, signal.SIGKILL)
    await _is_over(pid, _KILLED_S)


async def _is_over(pid: int, patience_s: float) -> bool:
    try:
        async with asyncio.timeout(patience_s):
            await _end_of(pid)
    except TimeoutError:
        return False
    return True


def _signal(kill: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        kill(pid, number)


def find_descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that one has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = path.read_text(errors="replace").rpartition(") ")[2].split()[1]
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found, left = [], [pid]
    while left:
        own = children.get(left.pop(), [])
        found += own
        left += own
    return found
