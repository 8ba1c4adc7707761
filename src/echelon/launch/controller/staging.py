"""With `--stage`: has nodes copy the environment or image to their own disks before ranks start.

If some node has a whole copy, the others get it from there; otherwise one node reads the original.
They form a tree, each node below one that passes on what it has so far, so that the time is that of
one copy. A node that cannot have a copy goes on without one; nothing waits for it.
"""

import time
from collections.abc import Sequence

from echelon.core.units import counted
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import AgentHandle, Lost, Received
from echelon.launch.protocol.messages import Stage, Staged
from echelon.run.events import NodesStaged
from echelon.run.journal import Journal

CHILDREN = 2
"""Nodes that one node passes its copy on to."""
_MOST_ROOTS = 3
"""How many nodes in a row may fail as the one that all others get their copy from."""
_SHOWN = 3


def list_above(position: int) -> list[int]:
    """Return the positions above one in the tree, the nearest first; the root has 0. Pure."""
    above = []
    while position:
        position = (position - 1) // CHILDREN
        above.append(position)
    return above


def plan_tree(agents: Sequence[AgentHandle]) -> list[Stage]:
    """Return the order for each agent but the first, which is the root. Pure."""
    places = [
        [[address, agent.hello.stage_port] for address in _addresses(agent)] for agent in agents
    ]
    return [
        Stage(sources=[place for above in list_above(position) for place in places[above]])
        for position in range(1, len(agents))
    ]


def _addresses(agent: AgentHandle) -> list[str]:
    """Return where an agent may be reached: as we see it, before what it says itself."""
    return list(dict.fromkeys([agent.link.peer_address, *agent.hello.addresses]))


class Staging:
    """See the module."""

    def __init__(self, pool: AgentPool, journal: Journal) -> None:
        self._pool, self._journal = pool, journal
        self._known: set[tuple[int, int]] = set()
        """Node and pid of agents that have been dealt with."""

    async def settle(self) -> bool:
        """Wait until each connected node has its copy, or goes on without.

        Return whether an agent was lost meanwhile.

        Raises:
            StopError: a stop was requested.
        """
        agents = [self._pool.agents[node] for node in sorted(self._pool.agents)]
        fresh = [one for one in agents if (one.node, one.hello.pid) not in self._known]
        self._known |= {(one.node, one.hello.pid) for one in fresh}
        if any(one.hello.stage or one.hello.unstaged for one in fresh):
            whole = [one for one in agents if one.hello.stage == "whole"]
            await _Round(self._pool, self._journal, fresh, whole).run()
        return not all(self._pool.has(one) for one in agents)


class _Round:
    """Nodes that get their copies together."""

    def __init__(
        self,
        pool: AgentPool,
        journal: Journal,
        agents: Sequence[AgentHandle],
        whole: Sequence[AgentHandle],
    ) -> None:
        self._pool, self._journal = pool, journal
        self._waiting = [one for one in agents if one.hello.stage == "part"]
        self._whole = list(whole)
        """Agents that have a whole copy."""
        self._found = sum(one.hello.stage == "whole" for one in agents)
        self._without = {one.name: one.hello.unstaged for one in agents if one.hello.unstaged}
        self._root: AgentHandle | None = None
        self._reader = ""
        self._roots = 0
        self._done: list[Staged] = []

    async def run(self) -> None:
        began_s = time.monotonic()
        self._plan()
        while self._waiting:
            match await self._pool.next():
                case Received(agent=agent, message=Staged() as staged):
                    self._take(agent, staged)
                case Lost(agent=agent, reason=reason):
                    self._drop(agent, reason)
                case Stop() as stop:
                    raise StopError(stop)
        self._tell(time.monotonic() - began_s)

    def _plan(self) -> None:
        """Choose a root, and order all that wait to get their copy from there."""
        whole = [one for one in self._whole if self._pool.has(one)]
        root = next(iter([*whole, *self._waiting]), None)
        if root is None or not self._waiting:
            return
        self._root, self._roots = root, self._roots + 1
        if root in self._waiting:
            self._reader = root.name
            root.link.say(Stage(sources=[]))
        others = [one for one in self._waiting if one is not root]
        for agent, order in zip(others, plan_tree([root, *others]), strict=True):
            agent.link.say(order)

    def _take(self, agent: AgentHandle, staged: Staged) -> None:
        if agent not in self._waiting:
            return
        self._waiting.remove(agent)
        self._done.append(staged)
        if not staged.error:
            self._whole.append(agent)
            return
        self._without[agent.name] = staged.error
        self._replace_root(agent)

    def _drop(self, agent: AgentHandle, why: str) -> None:
        if agent in self._waiting:
            self._waiting.remove(agent)
            self._without[agent.name] = why
        self._replace_root(agent)

    def _replace_root(self, lost: AgentHandle) -> None:
        """Choose another root if this was it; otherwise nodes below ask the next one above."""
        if lost is self._root and self._roots < _MOST_ROOTS:
            self._plan()

    def _tell(self, seconds: float) -> None:
        changed = any(one.changed for one in self._done)
        copied = sum(not one.error for one in self._done)
        self._journal.note(
            NodesStaged(
                nodes=self._found + copied,
                found=self._found,
                copied=sum(one.copied for one in self._done),
                repaired=sum(one.repaired for one in self._done if not one.error),
                seconds=round(seconds, 2),
                reader=self._reader,
                changed=changed,
                without=self._without,
            )
        )
        if changed:
            self._journal.report(
                "warning: the environment was changed after the run was submitted; ranks use it as "
                "it is now"
            )
        if self._without:
            shown = [f"{name}: {why}" for name, why in list(self._without.items())[:_SHOWN]]
            more = len(self._without) - len(shown)
            shown += [f"and {more} more"] if more else []
            who = counted(len(self._without), "node")
            self._journal.report(f"warning: no stage on {who}: {'; '.join(shown)}")
