"""Brings agents back to nodes that are still ours.

An agent may be lost while its node is well: it was killed, or the network was away for a while. A
node that the cluster has taken out of the job is gone for good, and its slots with it.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from echelon.errors import EchelonError
from echelon.launch.backends.base import Allocation, Starter
from echelon.launch.pool.agent_pool import AgentPool

PAUSES_S = (0.0, 5.0, 15.0, 30.0)
"""Before each try; the last is that of all which follow."""
GLANCE_S = 2.0
"""How often the cluster is asked, at most, which nodes are ours."""
TRY_S = 120.0
"""How long one try may take, beside the node's own check: as long as agents have at the start."""
REACH_S = 0.2
"""How long a host may take to answer that lives."""
COMEBACKS = 3
"""How often a node is brought back: one that is lost again and again is so for a reason."""
_CLOSED = 1
"""A port on which nobody listens: a host that lives says so."""


class AgentRecovery:
    """See the module."""

    def __init__(
        self,
        pool: AgentPool,
        starter: Starter,
        allocation: Allocation,
        *,
        departed: Callable[[int], None],
        tell_fault: Callable[[asyncio.Task[None]], None],
        report: Callable[[str], None],
        check_s: float = 0.0,
    ) -> None:
        """Prepare it.

        Args:
            pool: the agents.
            starter: starts them.
            allocation: says which nodes are still ours.
            departed: called with a node that is not.
            tell_fault: called with each task that has ended.
            report: says something in the job's output.
            check_s: how long the user's own check of a node may take.
        """
        self.departed: set[int] = set()
        """Nodes that are no longer ours."""
        self._pool, self._starter, self._allocation = pool, starter, allocation
        self._tell_departed, self._tell_fault = departed, tell_fault
        self._report, self._try_s = report, TRY_S + check_s
        self._comebacks: Counter[int] = Counter()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._near: set[int] = set()
        """Those whose hosts answer, or were not asked yet."""
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")

    def begin(self, nodes: Iterable[int] | None = None) -> None:
        """Start to bring back whoever is missing, or is of these nodes, if nobody is at it."""
        among = set(range(self._starter.nodes)) if nodes is None else set(nodes)
        missing = among - self._pool.agents.keys()
        for node in sorted(missing - self._pool.unfit.keys() - self.departed - self._tasks.keys()):
            self._near.add(node)
            task = asyncio.get_running_loop().create_task(self._bring_back(node))
            self._tasks[node] = task
            task.add_done_callback(self._tell_fault)

    def may_come(self, *, soon: bool) -> bool:
        """Tell whether some node may come back; soon is where its host is well."""
        hopeful = {node for node in self._tasks if self._comebacks[node] < COMEBACKS}
        return bool(hopeful & self._near if soon else hopeful)

    async def find_departed(self, nodes: Collection[int]) -> None:
        """Look which of these nodes are no longer ours."""
        hosts = {self._starter.host(node): node for node in nodes}
        held = await self._allocation.held(hosts.keys())
        if held is not None:
            self.part_with(hosts[host] for host in hosts.keys() - held)

    def part_with(self, nodes: Iterable[int]) -> None:
        """Take it that these nodes are not ours."""
        for node in sorted(set(nodes) - self.departed):
            self.departed.add(node)
            self._tell_departed(node)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _bring_back(self, node: int) -> None:
        pauses = iter(PAUSES_S)
        try:
            await self._reach(node)
            while not self._is_settled(node):
                await asyncio.sleep(next(pauses, PAUSES_S[-1]))
                await self._look()
                if self._is_settled(node) or self._comebacks[node] >= COMEBACKS:
                    self._near.discard(node)
                    self._pool.wake()
                    continue  # it is still ours, and may yet leave
                await self._call(node)
        finally:
            del self._tasks[node]
            self._near.discard(node)
            self._pool.wake()

    def _is_settled(self, node: int) -> bool:
        """Tell whether it is back, no longer fit, or gone for good."""
        return node in self.departed or node in self._pool.unfit or node in self._pool.agents

    async def _reach(self, node: int) -> None:
        """See whether the host is there at all: with a dead one nobody loses time."""
        home = self._pool.homes.get(node)
        if home and not await _answers(home.address):
            self._near.discard(node)
            self._pool.wake()

    async def _call(self, node: int) -> None:
        """Try once; a dead node is known to be dead, mostly, before a try there has failed."""
        coming = asyncio.get_running_loop().create_task(self._pool.restart(node))
        deadline_s = time.monotonic() + self._try_s
        try:
            while not coming.done() and node not in self.departed:
                if time.monotonic() >= deadline_s:  # srun hangs, say
                    self._report(
                        f"{self._starter.host(node)}: no agent came within {self._try_s:g} s;"
                        " what was to start it is ended, and it is tried again"
                    )
                    return
                await asyncio.wait([coming], timeout=GLANCE_S)
                if not coming.done():
                    await self._look()
            with contextlib.suppress(EchelonError, OSError):  # Slurm is away, say
                self._comebacks[node] += coming.done() and coming.result()
        finally:
            coming.cancel()

    async def _look(self) -> None:
        """Ask for all that are missing at once, however many want to know."""
        async with self._looking:
            if time.monotonic() - self._looked_s >= GLANCE_S / 2:
                await self.find_departed(self._tasks.keys() - self.departed)
                self._looked_s = time.monotonic()


async def _answers(address: str) -> bool:
    """Tell whether a host is there: also one that refuses answers."""
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(address, _CLOSED)
    except ConnectionRefusedError:
        return True
    except OSError:  # a time-out is one too
        return False
    writer.close()
    return True
