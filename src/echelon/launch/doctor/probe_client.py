"""The doctor's side of the connection to its probes: send questions, collect answers.

All events arrive through the pool's single queue, so a stop request is handled during any wait.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from echelon.core.frozen import frozen
from echelon.errors import EchelonError
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.pool.agent_launcher import read_reason
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Lost, PoolEvent, Received, StarterExited
from echelon.launch.protocol.messages import Answer, Ask

_AT_ONCE = 64
"""Number of probes that are restarted in parallel."""
Question = tuple[str, Mapping[str, Any]]


@frozen
class ProbeAnswer:
    """A node's answer."""

    found: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    at_s: float = 0.0
    """Time of day at which it arrived, by our clock."""


class ProbeClient:
    """See the module."""

    def __init__(self, pool: AgentPool) -> None:
        self._pool = pool
        self._number = 0
        self.lost: dict[int, str] = {}
        """Node → why its probe did not connect, or ended."""

    async def attend(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Wait for tasks, while handling stop requests.

        Raises:
            StopError: a stop was requested.
        """
        for task in tasks:
            task.add_done_callback(lambda _: self._pool.wake())
        try:
            while not all(task.done() for task in tasks):
                self._take_in(await self._pool.next())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def await_probes(self, nodes: Sequence[int], *, limit_s: float) -> None:
        """Wait until the probes of these nodes have connected; add the missing ones to `lost`."""
        deadline_s = time.monotonic() + limit_s
        while missing := set(nodes) - self._pool.agents.keys() - self.lost.keys():
            event = await self._pool.next(deadline_s)
            if event is None:
                why = " ".join(read_reason(started.log) for started in self._pool.started)
                told = why.strip() or f"it did not connect within {limit_s:g} s"
                self.lost |= dict.fromkeys(missing, told)
                return
            self._take_in(event)

    async def call_again(self, nodes: Sequence[int], *, limit_s: float) -> None:
        """Start missing probes once more; those that still do not connect stay in `lost`."""
        before = {node: self.lost.pop(node) for node in nodes}
        room, loop = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop()

        async def call(node: int) -> None:
            with contextlib.suppress(EchelonError, OSError):  # a time-out is one too
                async with room, asyncio.timeout(limit_s):
                    await self._pool.restart(node)

        await self.attend([loop.create_task(call(node)) for node in nodes])
        for node, why in before.items():
            if node in self._pool.agents:
                self.lost.pop(node, None)  # the step that should have started it ended meanwhile
            else:
                self.lost.setdefault(node, why)

    async def ask(
        self, questions: Mapping[int, Question], *, limit_s: float
    ) -> dict[int, ProbeAnswer]:
        """Ask each of some nodes a question; lost or late nodes yield an error."""
        self._number += 1
        said: dict[int, ProbeAnswer] = {}
        for node, (what, about) in questions.items():
            if node in self._pool.agents:
                question = Ask(number=self._number, what=what, about=dict(about))
                self._pool.agents[node].link.say(question)
        deadline_s = time.monotonic() + limit_s
        while missing := questions.keys() - said.keys() - self.lost.keys():
            event = await self._pool.next(deadline_s)
            if event is None:
                late = ProbeAnswer(error=f"no answer within {limit_s:g} s")
                said |= dict.fromkeys(missing, late)
                break
            match self._take_in(event):
                case Received(agent=agent, message=Answer(number=self._number) as answer):
                    said[agent.node] = ProbeAnswer(
                        found=answer.found, error=answer.error, at_s=time.time()
                    )
        gone = {node: ProbeAnswer(error=self.lost[node]) for node in questions if node in self.lost}
        return {**said, **gone}

    def _take_in(self, event: PoolEvent | None) -> PoolEvent | None:
        match event:
            case Stop() as stop:
                raise StopError(stop)
            case Lost(agent=agent, reason=reason):
                self.lost[agent.node] = reason
            case StarterExited(started=started):
                for node in started.nodes - self._pool.agents.keys() - self.lost.keys():
                    self.lost[node] = read_reason(started.log) or "it ended without output"
        return event
