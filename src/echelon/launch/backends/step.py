"""The backend of a step: a run on some slots of an allocation that its broker holds.

The controller of a step talks to the broker through a socket that it was started with
(`launch/allocation`). The broker has its agents started, tells it what happens to them and to its
nodes, and asks it to stop.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from echelon.core import addresses
from echelon.core.nodes import expand
from echelon.core.records import read_bytes
from echelon.launch.backends.base import (
    ANSWER_S,
    NODE_CAUSES,
    AgentCommand,
    AttemptContext,
    Backend,
    NoStandby,
    Outlook,
    Started,
    View,
)
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.message_socket import MessageSocket
from echelon.launch.protocol.messages import (
    AgentExited,
    Departed,
    EndAgent,
    Granted,
    Lead,
    Message,
    Neighbours,
    Released,
    StartAgents,
    StopStep,
)
from echelon.launch.protocol.rank_environment import (
    NODE,
    STEP,
    STEP_ADDRESS,
    STEP_HOSTS,
    receive_key,
)
from echelon.run.attempts import STOPPING

_MOST_ORDER = 100
LOOK_S = 0.5
"""How often we check whether the user has stopped the step, and whether its lead has changed."""


def step_backend(environ: Mapping[str, str], attempt: AttemptContext) -> Backend:
    """Return the backend of the step that we are the controller of."""
    broker = _Broker(int(environ[STEP]))
    starter = StepStarter(broker, environ)
    allocation = StepAllocation(
        broker, expand(environ[STEP_HOSTS]), attempt.run.attempt(attempt.number)
    )
    return Backend(
        starter=starter,
        allocation=allocation,
        neighbours=allocation.neighbours,
        standby=NoStandby() if attempt.request.hand_over == "never" else StepStandby(),
        # From our input: a variable would stay readable in /proc.
        key=receive_key(sys.stdin.buffer),
    )


class _Broker:
    """Our end of the socket to the broker."""

    def __init__(self, handle: int) -> None:
        self._socket = MessageSocket(socket.socket(fileno=handle))
        self.received: list[Callable[[Message], None]] = []
        """Called with each message."""

    def listen(self) -> None:
        """Receive messages from now on, in the event loop."""
        self._socket.listen(self._receive, _end)

    def say(self, message: Message) -> None:
        self._socket.send(message, waits=True)

    def _receive(self, message: Message) -> None:
        for receive in self.received:
            receive(message)


def _end() -> None:
    """End this process: the fork server is about to, and what we would record could be wrong."""
    os.kill(os.getpid(), signal.SIGKILL)


class _StepAgent:
    """An agent that a keeper starts for us."""

    def __init__(self, broker: _Broker, number: int, node: int, log: Path) -> None:
        self._broker, self.number, self.log = broker, number, log
        self.nodes = frozenset({node})
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def end(self, number: int = signal.SIGKILL) -> None:  # noqa: ARG002  its guard does the rest
        if self.status is None:
            self._broker.say(EndAgent(step=0, number=self.number))

    def dismiss(self) -> None:
        pass


class StepStarter:
    """Has the broker start agents, one in each slot."""

    def __init__(self, broker: _Broker, environ: Mapping[str, str]) -> None:
        self._broker, self._environ = broker, environ
        self._hosts = expand(environ[STEP_HOSTS])
        self.nodes = len(self._hosts)
        self._agents: dict[int, _StepAgent] = {}
        self._look: Callable[[], None] = lambda: None
        broker.received.append(self._receive)

    def ranks(self, node: int) -> int:  # noqa: ARG002  all are alike
        return 1

    def host(self, node: int) -> str:
        return self._hosts[node]

    def candidates(self) -> list[str]:
        own = [self._environ[STEP_ADDRESS]] if self._environ.get(STEP_ADDRESS) else []
        return list(dict.fromkeys([*own, *addresses.host_addresses()]))

    def start(self, nodes: Sequence[int], command: AgentCommand) -> list[Started]:
        found: list[Started] = []
        numbers = {}
        for node in nodes:
            number = len(self._agents) + 1
            log = command.logs / f"agent-{node}.log"
            self._agents[number] = agent = _StepAgent(self._broker, number, node, log)
            numbers[str(node)] = number
            found.append(agent)
        known = self._environ
        self._broker.say(
            StartAgents(
                numbers=numbers,
                arguments=list(command.arguments),
                # A keeper has all others, with the values of its node.
                environ={k: v for k, v in command.env.items() if known.get(k) != v and k != NODE},
                cwd=str(Path.cwd()),
                logs=str(command.logs),
            )
        )
        return found

    def outlook(self) -> Outlook:
        return Outlook()

    def on_exit(self, look: Callable[[], None]) -> None:
        self._look = look
        self._broker.listen()

    def _receive(self, message: Message) -> None:
        if isinstance(message, AgentExited) and message.number in self._agents:
            self._agents[message.number].status = message.status
            self._look()


class StepAllocation:
    """The slots of a step: its broker watches the job, and says why steps have to stop."""

    def __init__(self, broker: _Broker, hosts: Sequence[str], folder: Path) -> None:
        self._broker, self._hosts = broker, hosts
        self._stopping = folder / STOPPING
        self._departed: set[str] = set()
        self._neighbours: dict[str, set[str]] = {}
        self._stop: Stop | None = None
        """The last request to stop."""
        self._asked, self._may_go = asyncio.Event(), asyncio.Event()
        self._post: Callable[[Stop], None] = lambda _stop: None
        broker.received.append(self._receive)

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:
        self._post, lead_s, ordered = post, 0.0, ""
        self._broker.listen()
        if self._stop:
            post(self._stop)
        while True:
            if (own_s := view.lead_s()) != lead_s:
                lead_s = own_s
                self._broker.say(Lead(seconds=lead_s))
            how = await asyncio.to_thread(_read_order, self._stopping)
            if how != ordered:
                ordered = how
                self._ask(_as_stop(how))
            await asyncio.sleep(LOOK_S)

    async def explain(self, stop: Stop) -> Stop:
        """Wait for the broker: Slurm signals all processes of a job, and it asks why, for all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._asked.wait()
        return self._stop or stop

    async def reaches_cluster(self) -> bool:
        return True

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        return frozenset(hosts) - self._departed

    async def left_s(self) -> float | None:
        return None

    async def await_grant(self) -> None:
        """Wait for the program that used the slots before, or until we are asked to stop."""
        await self._may_go.wait()

    def release(self) -> None:
        self._broker.say(Released())

    def neighbours(self, host: str) -> Collection[str]:
        """Return the other runs that have used a node."""
        return self._neighbours.get(host, ())

    def _ask(self, stop: Stop) -> None:
        self._stop = stop
        self._asked.set()
        self._may_go.set()
        self._post(stop)

    def _receive(self, message: Message) -> None:
        match message:
            case Departed(nodes=nodes):
                self._departed |= {self._hosts[node] for node in nodes}
            case Granted():
                self._may_go.set()
            case Neighbours(node=node, runs=runs):
                self._neighbours.setdefault(self._hosts[node], set()).update(runs)
            case StopStep(stop=stop):
                self._ask(Stop(**stop))


class StepStandby(NoStandby):
    """The broker starts the step again: on other slots, or in the next job."""

    mends: tuple[str, ...] = NODE_CAUSES

    def assured(self) -> bool:
        return True

    async def conclude(self, *, wanted: bool) -> str:
        return "allocation" if wanted else ""


def _as_stop(how: str) -> Stop:
    """Return what a command has asked for: `stop`, `interrupt` or `cancel`."""
    at_once = how == "cancel"
    message = f"the run was {'cancelled' if at_once else 'stopped'} by a command"
    ask = signal.SIGINT if how == "interrupt" else signal.SIGTERM
    return Stop("cancelled", message, 128 + signal.SIGTERM, at_once=at_once, ask=ask)


def _read_order(path: Path) -> str:
    """Return how a command wants a step to stop; empty if none does."""
    try:
        return read_bytes(path, most=_MOST_ORDER).decode(errors="replace").strip() or "stop"
    except OSError:
        return ""
