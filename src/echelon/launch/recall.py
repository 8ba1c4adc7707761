"""Brings agents back to nodes that are still ours.

An agent may be lost while its node is well: it was killed, or the network was away for a while. A
node that the cluster has taken out of the job is gone for good, and its slots with it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from echelon.errors import EchelonError
from echelon.launch.allocation import Allocation
from echelon.launch.crew import Crew
from echelon.launch.starting import Starter

PAUSES_S = (0.0, 5.0, 15.0, 30.0)
"""Before each try. Then a node stays away, but may still leave the job."""
LOOK_S = 60.0
"""How often it is asked, after that, whether it has."""
GLANCE_S = 2.0
"""How often it is asked during a try."""
COMEBACKS = 3
"""How often a node is brought back: one that is lost again and again is so for a reason."""


class Recall:
    """See the module."""

    def __init__(
        self,
        crew: Crew,
        starter: Starter,
        allocation: Allocation,
        *,
        departed: Callable[[], None],
        tell_fault: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self.departed: set[int] = set()
        """Nodes that are no longer ours."""
        self._crew, self._starter, self._allocation = crew, starter, allocation
        self._tell_departed, self._tell_fault = departed, tell_fault
        self._comebacks: Counter[int] = Counter()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._hopeful: set[int] = set()

    def begin(self) -> None:
        """Start to bring back whoever is missing, if nobody is at it."""
        missing = set(range(self._starter.nodes)) - self._crew.agents.keys()
        for node in sorted(missing - self._crew.unfit.keys() - self.departed - self._tasks.keys()):
            self._hopeful.add(node)
            task = asyncio.get_running_loop().create_task(self._bring_back(node))
            self._tasks[node] = task
            task.add_done_callback(self._tell_fault)

    def is_hopeful(self) -> bool:
        """Tell whether some node may still come back."""
        return bool(self._hopeful)

    async def find_departed(self, nodes: Iterable[int]) -> None:
        """Look which of these nodes are no longer ours."""
        for node in sorted(nodes):
            if await self._allocation.holds(self._starter.host(node)) is False:
                self._depart(node)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _bring_back(self, node: int) -> None:
        try:
            if not await self._try(node):
                self._despair(node)
                while node not in self._crew.agents and node not in self.departed:
                    await asyncio.sleep(LOOK_S)
                    await self.find_departed([node])
        finally:
            del self._tasks[node]
            self._despair(node)

    async def _try(self, node: int) -> bool:
        """Return whether it is settled: it is back, no longer fit, or gone for good."""
        for pause_s in PAUSES_S if self._comebacks[node] < COMEBACKS else ():
            await asyncio.sleep(pause_s)
            coming = asyncio.get_running_loop().create_task(self._recall(node))
            try:
                # A dead node is known to be dead, mostly, before a try there is known to fail.
                while not coming.done() and node not in self.departed:
                    await asyncio.wait([coming], timeout=GLANCE_S)
                    await self.find_departed([] if coming.done() else [node])
            finally:
                coming.cancel()
            if node in self.departed or node in self._crew.unfit or node in self._crew.agents:
                return True
        return False

    async def _recall(self, node: int) -> None:
        held = await self._allocation.holds(self._starter.host(node))
        if held is False:
            self._depart(node)
        if not held or node in self._crew.agents:  # it may only have been late
            return
        try:
            if await self._crew.recall(node):
                self._comebacks[node] += 1
        except (EchelonError, OSError):
            return  # Slurm is away, say

    def _depart(self, node: int) -> None:
        if node not in self.departed:
            self.departed.add(node)
            self._tell_departed()

    def _despair(self, node: int) -> None:
        if node in self._hopeful:
            self._hopeful.discard(node)
            self._crew.wake()
