"""Finds the endpoint at which the ranks of a generation connect: an address and a port.

The first node's agent binds a socket and keeps it until a store is served on it, so no other
process can take the port in between. The address is one of that node's own which all other nodes
have reached: a name may resolve elsewhere, and there may be several interfaces.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from echelon.core import addresses
from echelon.core.frozen import frozen
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.failures import from_lost_agent
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import AgentHandle, Lost, Received
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.messages import Message, Open, Opened, Probe, Reached
from echelon.run.verdict import Failure


@frozen
class Endpoint:
    address: str
    port: int
    served: bool
    """Whether a store is served there; if not, rank 0 opens its own."""


class RendezvousError(Exception):
    """There is no endpoint that all nodes reach."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


M = TypeVar("M", bound=Message)


async def collect(
    pool: AgentPool,
    asked: Sequence[AgentHandle],
    kind: type[M],
    generation: int,
    *,
    needed: Sequence[AgentHandle],
    hung: Callable[[Hang], Failure | None],
) -> dict[int, M]:
    """Return one answer of a kind from each agent that was asked, by node.

    Args:
        pool: the agents.
        asked: those that were asked.
        kind: the answer's.
        generation: its generation.
        needed: agents that must not be lost, asked or not.
        hung: reports a hang; returns the failure if it is to end the generation.

    Raises:
        RendezvousError: an agent that is needed was lost, or the generation is to end.
        StopError: a stop was requested.
    """
    answers: dict[int, Any] = {}
    failure: Failure | None = None
    left = {agent.node for agent in asked}
    while left:
        match await pool.next():
            case Lost(agent=agent) as lost if agent in needed:
                raise RendezvousError(failure or from_lost_agent(lost))
            case Hang(generation=which) as hang if which == generation:
                if failure := hung(hang):
                    asked[0].link.drop(hang.message)  # its successor starts another zygote
            case Stop() as stop:
                raise StopError(stop)
            case Received(agent=agent, message=what) if isinstance(what, kind):
                if getattr(what, "generation", generation) == generation:
                    answers[agent.node] = what
                    left.discard(agent.node)
    return answers


class Rendezvous:
    """Finds endpoints, and remembers which address the nodes could reach."""

    def __init__(self, pool: AgentPool) -> None:
        self._pool = pool
        self._known: dict[tuple[int, ...], str] = {}

    async def find(
        self,
        agents: Sequence[AgentHandle],
        generation: int,
        hung: Callable[[Hang], Failure | None],
    ) -> Endpoint:
        """Return the endpoint for the ranks of these agents; see `collect`.

        Raises:
            RendezvousError: not all nodes reach any address, an agent was lost meanwhile, or its
                zygote hangs.
            StopError: a stop was requested.
        """
        first, others = agents[0], agents[1:]
        nodes = tuple(agent.node for agent in agents)
        known = self._known.get(nodes)
        choices = [known] if known else choose_addresses(first, others)
        first.link.say(Open(generation=generation, addresses=choices))
        ask = partial(collect, self._pool, generation=generation, needed=agents, hung=hung)
        opened = (await ask([first], Opened))[first.node]
        ports = opened.ports
        if not known and len(ports) > 1:
            for agent in others:
                agent.link.say(Probe(generation=generation, ports=ports))
            answers = await ask(others, Reached)
            ports = {
                address: port
                for address, port in ports.items()
                if all(address in answer.addresses for answer in answers.values())
            }
        if not ports:
            message = f"not all nodes can reach {first.name} at any of {', '.join(choices)}"
            raise RendezvousError(Failure(cause="start", message=message, exit_code=69))
        address = next(iter(ports))
        self._known[nodes] = address
        return Endpoint(address=address, port=ports[address], served=opened.served)


def choose_addresses(first: AgentHandle, others: Sequence[AgentHandle]) -> list[str]:
    """Return addresses at which others may reach the first node, the likeliest first."""
    if all(agent.hello.host == first.hello.host for agent in others):
        return [addresses.LOOPBACK]
    seen = {agent.link.own_address for agent in others}
    if first.hello.host == addresses.host_identity() and len(seen) == 1:
        return list(seen)  # the address at which all of them reached this very host
    return list(dict.fromkeys([first.link.peer_address, *first.hello.addresses]))
