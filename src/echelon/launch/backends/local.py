"""Several agents on this host, each in the role of a node. No allocation, and no next job."""

import os
from collections.abc import Callable, Collection, Sequence

from echelon.core import addresses
from echelon.core.shell import Shell
from echelon.launch.backends.base import (
    AgentCommand,
    AttemptContext,
    Backend,
    ChildStarter,
    NoStandby,
    Outlook,
    OwnNodes,
    Started,
    StartedProcess,
    View,
)
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.rank_environment import NODE, render_key


def local_backend(shell: Shell, attempt: AttemptContext | None = None) -> Backend:
    """Return the backend of this machine; without an attempt, the machine is one node."""
    if attempt:
        starter = LocalStarter(shell, attempt.request.nodes.high)
    else:
        starter = LocalStarter(shell, 1, name=os.uname().nodename)
    return Backend(starter=starter, allocation=LocalAllocation(), standby=NoStandby())


class LocalStarter(ChildStarter):
    """Starts several agents on this host."""

    def __init__(self, shell: Shell, nodes: int, *, name: str = "") -> None:
        self._shell, self.nodes, self._name = shell, nodes, name

    def ranks(self, node: int) -> int:  # noqa: ARG002  all are alike
        return 1

    def host(self, node: int) -> str:
        return self._name or f"node{node}"

    def candidates(self) -> list[str]:
        return [addresses.LOOPBACK]

    def start(self, nodes: Sequence[int], command: AgentCommand) -> list[Started]:
        found: list[Started] = []
        for node in nodes:
            log, own = command.logs / f"agent-{node}.log", {**command.env, NODE: str(node)}
            key = render_key(command.key)
            pid = self._shell.start(command.argv, log=log, env=own, stdin=key)
            found.append(StartedProcess(pid=pid, nodes=frozenset({node}), log=log))
        return found

    def outlook(self) -> Outlook:
        return Outlook()


class LocalAllocation(OwnNodes):
    """One's own machine, which has no time limit and is not taken away."""

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:
        pass

    async def explain(self, stop: Stop) -> Stop:
        return stop

    async def reaches_cluster(self) -> bool:
        return True

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        return frozenset(hosts)

    async def left_s(self) -> float | None:
        return None
