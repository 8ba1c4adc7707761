"""How many ranks the nodes of an attempt have room for."""

from collections.abc import Collection

from echelon.launch.backends.base import Starter
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import AgentHandle
from echelon.spec.job_spec import JobSpec


class Slots:
    """See the module."""

    def __init__(self, request: JobSpec, starter: Starter, pool: AgentPool) -> None:
        self._request, self._starter, self._pool = request, starter, pool

    def of(self, agent: AgentHandle) -> int:
        """Return the number of ranks of an agent."""
        return self._on(agent.node, agent.hello.gpus)

    def total(self, departed: Collection[int]) -> int:
        """Return the number of ranks of all nodes that are left.

        A node whose agent has not connected is assumed to be like the others.
        """
        known = {node: agent.hello.gpus for node, agent in self._pool.known.items()}
        usual = max(known.values(), default=0)
        nodes = set(range(self._starter.nodes)) - set(departed)
        return sum(self._on(node, known.get(node, usual)) for node in nodes)

    def _on(self, node: int, gpus: int) -> int:
        return self._request.procs or self._request.gpus or gpus or self._starter.ranks(node)
