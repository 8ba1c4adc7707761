"""The first look at all nodes, in parallel; nodes that do not respond are tried once more.

A cloud node, or one that Slurm powered down, may still be starting.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from echelon.core.atomic_file import write_atomic
from echelon.core.shell import Shell
from echelon.launch.backends.base import Starter
from echelon.launch.backends.slurm.starter import without_shape
from echelon.launch.doctor.asking import Questioner
from echelon.launch.doctor.look import SCRIPT, parse_look
from echelon.launch.doctor.programs import run_program
from echelon.launch.doctor.record import Look
from echelon.launch.doctor.site import Place

AT_ONCE = 64
"""Number of steps that run in parallel."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Time limits of one attempt."""

    step_s: int
    """How long Slurm may take to start the step."""
    look_s: float
    """How long the step may take in total."""


FIRST, AGAIN = Turn(20, 30.0), Turn(40, 60.0)


class Looking:
    """See the module."""

    def __init__(
        self,
        asking: Questioner,
        *,
        shell: Shell,
        starter: Starter,
        environ: Mapping[str, str],
        place: Place,
        tell: Callable[[str], None],
    ) -> None:
        self._asking, self._shell, self._starter = asking, shell, starter
        self._environ, self._place, self._tell = environ, place, tell

    async def look(self) -> dict[int, Look]:
        """Return the first look at each node.

        Raises:
            StopError: a stop was requested.
        """
        count = self._starter.nodes
        self._tell(f"first look at {count} node{'s' if count > 1 else ''}")
        nonce = secrets.token_hex(8)
        write_atomic(self._place.folder / "nonce", nonce)
        found = await self._look_at(range(count), nonce, FIRST)
        if silent := [node for node, look in found.items() if not look.hostname]:
            nodes = f"{len(silent)} node{'s' if len(silent) > 1 else ''}"
            self._tell(f"trying {nodes} again that did not respond")
            found |= await self._look_at(silent, nonce, AGAIN)
        return found

    async def _look_at(self, nodes: Sequence[int], nonce: str, turn: Turn) -> dict[int, Look]:
        room = asyncio.Semaphore(AT_ONCE)
        loop = asyncio.get_running_loop()
        tasks = {node: loop.create_task(self._ask(node, nonce, turn, room)) for node in nodes}
        await self._asking.attend(list(tasks.values()))
        return {node: task.result() for node, task in tasks.items()}

    async def _ask(self, node: int, nonce: str, turn: Turn, room: asyncio.Semaphore) -> Look:
        argv = ["sh", "-c", SCRIPT, "sh", str(self._place.folder), nonce, self._place.python]
        if job := self._environ.get("SLURM_JOB_ID", ""):
            argv = [*look_step(job, self._starter.host(node), turn.step_s), *argv]
        async with room:
            asked_s = time.time()
            code, said = await run_program(
                self._shell,
                argv,
                env=without_shape(self._environ),
                log=self._place.scratch / f"look-{node}-{turn.step_s}.log",
                limit_s=turn.look_s,
            )
            answered_s = time.time()
        error = tell_failure(code, said, turn.look_s)
        return parse_look(said, asked_s=asked_s, answered_s=answered_s, error=error)


def tell_failure(code: int | None, said: str, limit_s: float) -> str:
    """Return why a look failed, with Slurm's message if there is one; empty if it did not. Pure."""
    if code is None:
        return f"no answer within {limit_s:g} s"
    srun = [line for line in said.splitlines() if line.startswith("srun: error:")]
    if srun and code:
        return srun[0].removeprefix("srun: error:").strip()
    return f"the check exited with code {code}" if code else ""


def look_step(job: str, host: str, patience_s: int) -> list[str]:
    """Return the command prefix that runs a step on one node of a job, beside its other steps.

    The step starts in /, because the current directory may be the one that is missing.
    """
    return [
        *("srun", f"--jobid={job}", f"--nodelist={host}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--cpu-bind=none", "--mem=0", "--gres=none", "--no-kill", "--export=ALL"),
        *(f"--immediate={patience_s}", "--unbuffered", "--input=none", "--chdir=/"),
    ]


def is_well(look: Look) -> bool:
    """Tell whether a probe can be started on the node."""
    return not (look.error or look.python_error) and look.folder == "seen"
