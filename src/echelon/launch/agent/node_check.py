"""Whether a node can run ranks: checked by its agent before any are started there.

On a broken node a program may hang forever, and even SIGKILL may not end it. Each one therefore has
its own process group and a time limit, after which it is abandoned.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.core.nodes import compress
from echelon.core.proc import tail
from echelon.core.shell import Shell, signal_group
from echelon.errors import EchelonError
from echelon.launch.agent.guard import Guard
from echelon.launch.protocol.messages import Hello
from echelon.run.verdict import Failure
from echelon.spec.job_spec import JobSpec

GPU_S = 30.0
COMMAND_S = 120.0
"""Time limit of the user's own check."""
IMAGE_S = 1800.0
"""How long the import of an image may take."""
ROOM_MIB = 16
"""Upper bound of what ranks' shared memory and sockets need in the scratch folder."""


@frozen
class Fault:
    """Why a node cannot be used."""

    reason: str
    own: bool = False
    """Whether the cause is this node, not a file system or a command that all nodes share."""


def check_limit_s(request: JobSpec) -> float:
    """Return how long a node may take for what a request wants before it connects."""
    return (COMMAND_S if request.node_check else 0.0) + (IMAGE_S if request.image else 0.0)


def check_places(logs: Path, scratch: Path) -> Fault | None:
    """Check that ranks can write their logs and have room for their shared memory."""
    try:
        tempfile.TemporaryFile(dir=logs).close()
    except OSError as error:
        return Fault(reason=f"cannot write to {logs}: {error.strerror}")
    room = os.statvfs(scratch)
    free_mib = room.f_bavail * room.f_frsize >> 20
    if room.f_blocks and free_mib < ROOM_MIB:  # a tmpfs without a size limit has no blocks
        return Fault(reason=f"only {free_mib} MiB are free in {scratch.parent}", own=True)
    return None


class NodeCheck:
    """Runs the checks; the owner reaps all children, and reports them with `collected`."""

    def __init__(
        self, *, shell: Shell, guard: Guard, env: Mapping[str, str], log: Path, scratch: Path
    ) -> None:
        self._shell, self._guard = shell, guard
        self._env, self._log, self._scratch = env, log, scratch
        self._running: dict[int, asyncio.Future[int]] = {}

    async def run(self, *, gpus: int, command: str) -> Fault | None:
        """Return the first fault, or None.

        Args:
            gpus: how many the node was granted.
            command: the user's own check, or ''.
        """
        found = await asyncio.gather(self._check_gpus(gpus), self._run_command(command))
        return next((fault for fault in found if fault), None)

    async def _check_gpus(self, gpus: int) -> Fault | None:
        if not gpus or self._shell.which("nvidia-smi") is None:
            return None
        # This path may lead to CUDA's stub libraries, with which nvidia-smi fails.
        env = {name: v for name, v in self._env.items() if name != "LD_LIBRARY_PATH"}
        log = self._scratch / "gpus.log"
        wrong = await self._end_of(["nvidia-smi", "-L"], env=env, log=log, limit_s=GPU_S)
        return Fault(reason=f"nvidia-smi -L {wrong}", own=True) if wrong else None

    async def _run_command(self, command: str) -> Fault | None:
        if not command:
            return None
        argv = ["bash", "-c", command]
        wrong = await self._end_of(argv, env=self._env, log=self._log, limit_s=COMMAND_S)
        return Fault(reason=f"node_check {wrong}") if wrong else None

    async def _end_of(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, limit_s: float
    ) -> str:
        """Run a program; return how it failed, or ''."""
        try:
            pid = self._shell.start(argv, log=log, env=env)
        except (OSError, EchelonError) as error:
            return f"cannot be started: {error}"
        self._guard.watch(pid)
        ended = self._running[pid] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit_s):
                code = await ended
        except TimeoutError:
            return f"did not finish within {limit_s:g} s"
        finally:
            del self._running[pid]
            signal_group(pid)
            self._guard.forget(pid)
        return describe_exit(code, log) if code else ""

    def collected(self, pid: int, status: int) -> None:
        """Record the exit of a child process, if it is one of ours."""
        ended = self._running.get(pid)
        if ended and not ended.done():
            ended.set_result(os.waitstatus_to_exitcode(status))


def describe_exit(code: int, log: Path) -> str:
    """Return how a program ended, with the last line of its log; < 0 is a signal."""
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    return f"{how}: {lines[-1][:200]}" if lines else f"{how}, without output"


# --- the controller's conclusions: pure -------------------------------------------------------


def judge_checks(unfit: Sequence[Hello], *, passed: int) -> list[Failure]:
    """Return the failures that failed checks amount to, one for each node that is to blame.

    If no node passed, the check itself or something shared may be at fault: then there is one
    failure without a node. The exception is a single node whose fault is certainly its own.
    """
    if passed or (len(unfit) == 1 and unfit[0].fault_own):
        return [_failure(hello.name, f"it failed its check: {hello.fault}") for hello in unfit]
    if not unfit:
        return []
    who, first = compress([hello.name for hello in unfit]), unfit[0]
    return [_failure("", f"no node passed its check ({who}); {first.name}: {first.fault}")]


def _failure(node: str, message: str) -> Failure:
    return Failure(cause="start", message=message, node=node, exit_code=69)
