"""The doctor's side of the connection to its probes: send questions, collect answers.

All events arrive through the pool's single queue, so a stop request is handled during any wait.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.pool.agent_launcher import read_reason
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Lost, PoolEvent, Received, StarterExited
from echelon.launch.protocol.messages import Answer, Ask

Details = Mapping[str, Any]
"""Of a question, or of an answer; an answer that failed has an `error`."""
RECEIVED_S = "received_s"
"""In an answer: the time of day at which it arrived, by our clock."""


class ProbeClient:
    """Asks the probes of an agent pool."""

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
                self._handle(await self._pool.next())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def await_probes(self, nodes: Sequence[int], *, limit_s: float) -> None:
        """Wait until the probes of these nodes have connected; add the missing ones to `lost`."""
        deadline_s = time.monotonic() + limit_s
        while missing := set(nodes) - self._pool.agents.keys() - self.lost.keys():
            entry = await self._pool.next(deadline_s)
            if entry is None:
                why = " ".join(read_reason(started.log) for started in self._pool.started)
                why = why.strip() or f"it did not connect within {limit_s:g} s"
                self.lost |= dict.fromkeys(missing, why)
                return
            self._handle(entry)

    async def ask(
        self, what: str, questions: Mapping[int, Details], *, limit_s: float
    ) -> dict[int, Details]:
        """Ask a question, with different details on each node; return the answer of each node."""
        self._number += 1
        answers: dict[int, Details] = {}
        for node in questions.keys() & self._pool.agents.keys():
            question = Ask(number=self._number, what=what, about=dict(questions[node]))
            self._pool.agents[node].link.say(question)
        deadline_s = time.monotonic() + limit_s
        while missing := questions.keys() - answers.keys() - self.lost.keys():
            entry = await self._pool.next(deadline_s)
            if entry is None:
                late = {"error": f"no answer within {limit_s:g} s"}
                answers |= dict.fromkeys(missing, late)
                break
            match self._handle(entry):
                case Received(agent=agent, message=Answer(number=self._number, found=found)):
                    answers[agent.node] = {**found, RECEIVED_S: time.time()}
        lost = {node: {"error": self.lost[node]} for node in questions if node in self.lost}
        return {**answers, **lost}

    def _handle(self, entry: PoolEvent | None) -> PoolEvent | None:
        match entry:
            case Stop() as stop:
                raise StopError(stop)
            case Lost(agent=agent, reason=reason):
                self.lost[agent.node] = reason
            case StarterExited(started=started):
                for node in started.nodes - self._pool.agents.keys() - self.lost.keys():
                    self.lost[node] = read_reason(started.log) or "it ended without output"
        return entry
