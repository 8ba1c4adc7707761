"""The doctor's end of its probes: questions to some of them at once, and their answers.

Everything that happens comes out of the crew's one queue, so a wish to stop is heard whatever is
being waited for.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.core.shell import Shell
from echelon.launch.crew import Agent, Crew, Gone, Lost, Stop
from echelon.launch.meeting import StopError
from echelon.launch.messages import Answer, Ask
from echelon.launch.muster import read_reason
from echelon.launch.sampling import tail

_GLANCE_S = 0.02
_GRACE_S = 2.0
"""What a program gets between being asked to end and being killed."""
Question = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a node answered."""

    found: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    at_s: float = 0.0
    """When, by our time of day."""


class Questioner:
    """See the module."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._number = 0
        self.lost: dict[int, str] = {}
        """By node: why its probe is not, or no longer, there."""

    async def attend(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait for tasks; whoever wants us to stop is heard meanwhile.

        Raises:
            StopError: somebody does.
        """
        for task in tasks:
            task.add_done_callback(lambda _: self._crew.wake())
        try:
            while not all(task.done() for task in tasks):
                self._take_in(await self._crew.next())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def await_probes(self, nodes: Sequence[int], *, limit_s: float) -> None:
        """Wait until the probes of these nodes are here; `lost` has those that do not come."""
        deadline_s = time.monotonic() + limit_s
        while missing := set(nodes) - self._crew.agents.keys() - self.lost.keys():
            entry = await self._crew.next(deadline_s)
            if entry is None:
                why = " ".join(read_reason(started.log) for started in self._crew.started)
                told = why.strip() or f"it did not come within {limit_s:g} s"
                self.lost |= dict.fromkeys(missing, told)
                return
            self._take_in(entry)

    async def ask(self, questions: Mapping[int, Question], *, limit_s: float) -> dict[int, Said]:
        """Ask some nodes, each its own question; those that are lost or late answer an error."""
        self._number += 1
        said: dict[int, Said] = {}
        for node, (what, about) in questions.items():
            if node in self._crew.agents:
                question = Ask(number=self._number, what=what, about=dict(about))
                self._crew.agents[node].link.say(question)
        deadline_s = time.monotonic() + limit_s
        while missing := questions.keys() - said.keys() - self.lost.keys():
            entry = await self._crew.next(deadline_s)
            if entry is None:
                late = Said(error=f"no answer within {limit_s:g} s")
                said |= dict.fromkeys(missing, late)
                break
            match self._take_in(entry):
                case (Agent() as agent, Answer(number=self._number) as answer):
                    said[agent.node] = Said(
                        found=answer.found, error=answer.error, at_s=time.time()
                    )
        gone = {node: Said(error=self.lost[node]) for node in questions if node in self.lost}
        return {**said, **gone}

    def _take_in(self, entry: Any) -> Any:
        match entry:
            case (_, Stop() as stop):
                raise StopError(stop)
            case (Agent() as agent, Lost(reason=reason)):
                self.lost[agent.node] = reason
            case (_, Gone(started=started)):
                for node in started.nodes - self._crew.agents.keys() - self.lost.keys():
                    self.lost[node] = read_reason(started.log) or "it ended, and said nothing"
        return entry


async def run_program(
    shell: Shell, argv: Sequence[str], *, env: Mapping[str, str], log: Path, limit_s: float
) -> tuple[int | None, str]:
    """Run a program with a limit; return its exit code, None when it was ended, and what it said.

    Unlike `Shell.run` in a thread it can be cancelled, and leaves nothing behind.
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
            await asyncio.shield(_end(pid))
    return code, tail(log)


async def _end_of(pid: int) -> int:
    while True:
        if (code := _collect(pid)) is not None:
            return code
        await asyncio.sleep(_GLANCE_S)


def _collect(pid: int) -> int | None:
    gone, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if gone else None


async def _end(pid: int) -> None:
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 60.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await _end_of(pid)
                return
