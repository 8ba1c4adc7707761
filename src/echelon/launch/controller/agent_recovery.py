"""Restarts lost agents on nodes that still belong to the job.

An agent may be lost although its node is fine: it was killed, or the network was interrupted. A
node that the cluster has removed from the job has left for good, and its slots with it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from echelon.errors import EchelonError
from echelon.launch.backends.base import Allocation, Starter
from echelon.launch.pool.agent_pool import AgentPool
from echelon.run.events import NodeDeparted
from echelon.run.journal import Journal

_log = logging.getLogger(__name__)
PAUSES_S = (0.0, 5.0, 15.0, 30.0)
"""Pauses before each try; the last one repeats."""
GLANCE_S = 2.0
"""How often, at most, the cluster is asked which nodes belong to the job."""
TRY_S = 120.0
"""How long one try may take, apart from the node check; agents have as long at the start."""
REACH_S = 0.2
"""How long a live host may take to answer."""
COMEBACKS = 3
"""How often a node is restarted: one that is lost repeatedly has a fault."""
_CLOSED = 1
"""A port on which nothing listens: a live host refuses the connection."""


class AgentRecovery:
    """See the module."""

    def __init__(
        self,
        pool: AgentPool,
        starter: Starter,
        allocation: Allocation,
        *,
        journal: Journal,
        count_slots: Callable[[Collection[int]], int],
        check_s: float = 0.0,
    ) -> None:
        """Prepare it.

        Args:
            pool: the agents.
            starter: starts them.
            allocation: tells which nodes still belong to the job.
            journal: records nodes that do not.
            count_slots: returns the number of slots without these nodes.
            check_s: how long the user's own node check may take.
        """
        self.departed: set[int] = set()
        """Nodes that no longer belong to the job."""
        self._pool, self._starter, self._allocation = pool, starter, allocation
        self._journal, self._count_slots = journal, count_slots
        self._try_s = TRY_S + check_s
        self._comebacks: Counter[int] = Counter()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._near: set[int] = set()
        """Nodes whose hosts answer, or were not asked yet."""
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")

    def begin(self, nodes: Iterable[int] | None = None) -> None:
        """Start to restart missing agents, of all or of these nodes, unless that is under way."""
        among = set(range(self._starter.nodes)) if nodes is None else set(nodes)
        missing = among - self._pool.agents.keys()
        for node in sorted(missing - self._pool.unfit.keys() - self.departed - self._tasks.keys()):
            self._near.add(node)
            task = asyncio.get_running_loop().create_task(self._bring_back(node))
            self._tasks[node] = report_crash(task, "agent recovery", self._journal)

    def may_come(self, *, soon: bool) -> bool:
        """Tell whether some node may come back; soon means that its host answers."""
        hopeful = {node for node in self._tasks if self._comebacks[node] < COMEBACKS}
        return bool(hopeful & self._near if soon else hopeful)

    async def find_departed(self, nodes: Collection[int]) -> None:
        """Find out which of these nodes no longer belong to the job."""
        hosts = {self._starter.host(node): node for node in nodes}
        held = await self._allocation.held(hosts.keys())
        if held is not None:
            self.mark_departed(hosts[host] for host in hosts.keys() - held)

    def mark_departed(self, nodes: Iterable[int]) -> None:
        """Record that these nodes no longer belong to the job."""
        for node in sorted(set(nodes) - self.departed):
            self.departed.add(node)
            self._journal.note(NodeDeparted(node=node, slots=self._count_slots(self.departed)))

    async def wait(self) -> None:
        """Wait until no agent is being restarted."""
        await asyncio.gather(*self._tasks.values())

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
                    continue  # it belongs to the job still, and may yet leave
                await self._call(node)
        finally:
            del self._tasks[node]
            self._near.discard(node)
            self._pool.wake()

    def _is_settled(self, node: int) -> bool:
        """Tell whether it is back, has failed its check, or has left the job."""
        return node in self.departed or node in self._pool.unfit or node in self._pool.agents

    async def _reach(self, node: int) -> None:
        """Check whether the host answers, so that the run does not wait for a dead one."""
        last = self._pool.known.get(node)
        if last and not await _answers(last.link.peer_address):
            self._near.discard(node)
            self._pool.wake()

    async def _call(self, node: int) -> None:
        """Try once, unless the cluster reports meanwhile that the node is dead."""
        _log.info("starting the agent of node %d again", node)
        coming = asyncio.get_running_loop().create_task(self._pool.restart(node))
        deadline_s = time.monotonic() + self._try_s
        try:
            while not coming.done() and node not in self.departed:
                if time.monotonic() >= deadline_s:  # srun hangs, say
                    self._journal.report(
                        f"{self._starter.host(node)}: no agent connected within {self._try_s:g} s;"
                        " trying again"
                    )
                    return
                await asyncio.wait([coming], timeout=GLANCE_S)
                if not coming.done():
                    await self._look()
            with contextlib.suppress(EchelonError, OSError):  # Slurm is unavailable, say
                self._comebacks[node] += coming.done() and coming.result()
        finally:
            coming.cancel()

    async def _look(self) -> None:
        """Ask about all missing nodes at once, however many tasks want to know."""
        async with self._looking:
            if time.monotonic() - self._looked_s >= GLANCE_S / 2:
                await self.find_departed(self._tasks.keys() - self.departed)
                self._looked_s = time.monotonic()


def report_crash(task: asyncio.Task[None], what: str, journal: Journal) -> asyncio.Task[None]:
    """Report an unexpected error of a background task, without which the run continues."""

    def look(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()):
            journal.report(f"internal error in {what}: {type(error).__name__}: {error}")

    task.add_done_callback(look)
    return task


async def _answers(address: str) -> bool:
    """Tell whether a host answers, if only with a refusal."""
    try:
        async with asyncio.timeout(REACH_S):
            _, writer = await asyncio.open_connection(address, _CLOSED)
    except ConnectionRefusedError:
        return True
    except OSError:  # a time-out is one too
        return False
    writer.close()
    return True
