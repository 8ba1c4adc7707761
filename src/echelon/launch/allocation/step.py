"""A step, as its broker sees it: a run's controller, and the slots that its agents use."""

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from echelon.launch.allocation.fork_client import ForkClient
from echelon.launch.allocation.keeper import step_key
from echelon.launch.allocation.slots import Slot, job_environment
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.message_socket import MessageSocket
from echelon.launch.protocol.messages import (
    AgentExited,
    EndAgent,
    Fork,
    Granted,
    Lead,
    Message,
    Neighbours,
    Released,
    StartAgent,
    StartAgents,
    StopStep,
)
from echelon.launch.protocol.rank_environment import STEP_ADDRESS, STEP_HOSTS
from echelon.run.directory import RunDir


class Step:
    """See the module."""

    def __init__(
        self,
        number: int,
        run: RunDir,
        attempt: int,
        *,
        slots: Sequence[Slot],
        hosts: Sequence[str],
        order: Callable[[int, StartAgent | EndAgent], None],
        released: "Callable[[Step], None]",
    ) -> None:
        """Prepare it.

        Args:
            number: its number in the allocation.
            run: its run.
            attempt: the attempt of the run.
            slots: where its agents run.
            hosts: the names of their nodes.
            order: passes an order to the keeper of a node.
            released: called when its ranks have ended for good.
        """
        self.number, self.run, self.attempt = number, run, attempt
        self.slots, self.hosts = slots, hosts
        self.agents: set[int] = set()
        """Agents that have not exited."""
        self.lead_s = 0.0
        """How long before the end of the job its ranks have to be told."""
        self.has_ended = False
        """Whether its controller has exited."""
        self.is_settled = False
        """Whether all of its processes have exited."""
        self.began_s: float | None = None
        """When its slots became free for it; None as long as another step uses them."""
        self.neighbours: dict[int, list[str]] = {}
        """By node of the step: the other runs that used it when this one started."""
        self._nodes: dict[int, int] = {}
        """The node of each agent that was ever started."""
        self._order, self._released = order, released
        self._socket: MessageSocket | None = None

    def start(
        self,
        controllers: ForkClient,
        key: bytes,
        *,
        digest: str,
        environ: Mapping[str, str],
        cwd: str,
        reached: str,
    ) -> None:
        """Start its controller.

        Args:
            controllers: forks it.
            key: the broker's key.
            digest: SHA-256 of the run's request.
            environ: the broker's variables.
            cwd: the working directory.
            reached: our address, as the keepers of its nodes reach it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = MessageSocket(ours)
        self._socket.listen(self._receive, lambda: None)
        own = {STEP_HOSTS: ",".join(self.hosts), STEP_ADDRESS: reached}
        controllers.fork(
            Fork(
                number=self.number,
                role="controller",
                arguments=[str(self.run.path), str(self.attempt), digest],
                environ={**job_environment(environ, self.hosts), **own},
                cwd=cwd,
                log=str(self.run.job_log(self.attempt)),
                key=step_key(key, self.number).hex(),
            ),
            theirs.detach(),
        )
        for node, runs in self.neighbours.items():
            self.tell(Neighbours(node=node, runs=runs))

    def grant(self) -> None:
        """Let its ranks start."""
        self.began_s = time.monotonic()
        self.tell(Granted())

    def stop(self, stop: Stop) -> None:
        """Ask it to stop."""
        self.tell(StopStep(stop=asdict(stop)))

    def tell(self, message: Message) -> None:
        """Send its controller a message; does nothing if that has exited."""
        if self._socket is not None:  # one that hangs will be killed
            self._socket.send(message)

    def close(self) -> None:
        """Kill agents that are left; no more messages are received."""
        if self._socket is not None:
            self._socket.close()
        for number in list(self.agents):
            self._order(self._nodes[number], EndAgent(step=self.number, number=number))

    def lose_node(self, node: int) -> None:
        """Note that all of its agents on a node are gone."""
        for number in [one for one in self.agents if self._nodes[one] == node]:
            self.agents.discard(number)
            self.tell(AgentExited(step=self.number, number=number, status=-signal.SIGKILL))

    def _receive(self, message: Message) -> None:
        match message:
            case StartAgents() as order:
                self._start_agents(order)
            case EndAgent(number=number):
                self._order(self._nodes[number], EndAgent(step=self.number, number=number))
            case Lead(seconds=seconds):
                self.lead_s = seconds
            case Released():
                self._released(self)

    def _start_agents(self, order: StartAgents) -> None:
        for node, number in order.numbers.items():
            slot = self.slots[int(node)]
            self.agents.add(number)
            self._nodes[number] = slot.node
            self._order(
                slot.node,
                StartAgent(
                    step=self.number,
                    number=number,
                    node=int(node),
                    hosts=list(self.hosts),
                    gpus=list(slot.gpus),
                    cpus=list(slot.cpus),
                    arguments=order.arguments,
                    environ=order.environ,
                    cwd=order.cwd,
                    log=str(Path(order.logs, f"agent-{node}.log")),
                ),
            )
