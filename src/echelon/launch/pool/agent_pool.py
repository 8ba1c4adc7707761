"""The agents of an attempt, as their controller sees them: which are connected, what happened.

Everything that happens (a message, a lost agent, a signal, a hang) becomes an event in one queue,
so that the controller handles one at a time and reads from top to bottom.
"""

import asyncio
import contextlib
import logging
import math
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from echelon.launch.backends.base import AgentCommand, Started, Starter
from echelon.launch.backends.stop import Stop
from echelon.launch.pool.agent_launcher import AgentLauncher
from echelon.launch.pool.agent_server import AgentServer
from echelon.launch.pool.controller_events import (
    AgentHandle,
    Lost,
    PoolEvent,
    Received,
    StarterExited,
    Woken,
)
from echelon.launch.pool.hang import Hang
from echelon.launch.protocol.link import PULSE_S, SILENCE_S, sleep_a_pulse
from echelon.launch.protocol.messages import (
    Hello,
    Imported,
    Leave,
    Message,
    Note,
    Pulse,
    Signalled,
)
from echelon.launch.protocol.rank_environment import CONTROLLER, FILES, REPLACES
from echelon.run import events
from echelon.run.journal import NoteTaker
from echelon.run.verdict import OUR_PAUSE

_log = logging.getLogger(__name__)
_SIGNALLED: dict[int, str] = {
    signal.SIGINT: "it was interrupted (SIGINT, as by Ctrl-C)",
    signal.SIGHUP: "it was cancelled, or the command that waits for it was ended (SIGHUP)",
}
LEAVE_S = 5.0
"""How long agents may take to exit after they are told to."""
LOST_S = 1.0
"""The same if some agents are lost."""
ALIVE_S = 60.0
"""How often the run's heartbeat is recorded. If its host dies, this is the only trace of how long
the run lived."""
FIRST_ALIVE_S = 5.0
"""The same after a generation's first step: `status` divides a run's time by its heartbeats."""


class AgentPool:
    """See the module."""

    def __init__(
        self,
        starter: Starter,
        note: NoteTaker,
        report: Callable[[str], None],
        *,
        key: bytes = b"",
    ) -> None:
        """Create a pool without agents.

        Args:
            starter: starts them.
            note: records events.
            report: prints messages for users.
            key: the key that agents have to know; by default a new one.
        """
        self.agents: dict[int, AgentHandle] = {}
        """Connected agents, by node."""
        self.unfit: dict[int, Hello] = {}
        """Nodes that are excluded because they failed their check."""
        self.known: dict[int, AgentHandle] = {}
        """By node: the last agent that connected, even if it was lost."""
        self.on_pulse: Callable[[Pulse], None] | None = None
        """Called with each heartbeat of an agent: too many to be events in the queue."""
        self._starter, self._note, self._report = starter, note, report
        self._launcher = AgentLauncher(starter, self._report_exit)
        self._server = AgentServer(
            starter.nodes, key=key, received=self.hear, lost=self._lose, note=note
        )
        self._queue: asyncio.Queue[PoolEvent] = asyncio.Queue()
        self._pulse: asyncio.Task[None] | None = None
        self._furthest = (0, -1)
        """The newest generation, and its newest step."""
        self._lost: set[int] = set()
        """Nodes whose agents are lost."""
        self._signals = 0
        self.signalled: Stop | None = None
        """The last stop that a signal has requested."""
        self._paused_s, self._resumed_s = 0.0, float("-inf")
        """How long this process was last suspended, and when it resumed."""

    def install_signal_handlers(self) -> None:
        """Turn signals into stops, from now on; one may arrive before there are any agents."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_signal, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # one may be waiting
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            # Sent as a warning by the user's own `--signal=B:`. We know the time limit ourselves.
            loop.add_signal_handler(
                number, partial(self._note, events.SignalIgnored(signal=int(number)))
            )

    async def start(
        self,
        argv: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        *,
        arguments: Sequence[str] = (),
    ) -> None:
        """Listen where agents can reach us, and start them on all nodes that are not excluded.

        Args:
            argv: their command.
            folder: for the logs of the processes that start them.
            env: their variables.
            arguments: the last words of their command, see `AgentCommand`.
        """
        loop = asyncio.get_running_loop()
        self.install_signal_handlers()
        self._starter.on_exit(self._launcher.reap)
        heard = await self._server.open(self._starter.candidates())
        few, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        private = {CONTROLLER: ",".join(heard), FILES: str(few)}
        _log.info("listening at %s", ", ".join(heard))
        fit = [node for node in range(self._starter.nodes) if node not in self.unfit]
        own = {**env, **private}
        command = AgentCommand(
            argv=argv, env=own, logs=folder, key=self._server.key, arguments=arguments
        )
        self._launcher.call_all(fit, command)
        _allow_many_files()
        self._pulse = loop.create_task(self._keep_pulse())
        self._pulse.add_done_callback(self._end_with)

    @property
    def key(self) -> bytes:
        """The key that agents have to know."""
        return self._server.key

    @property
    def started(self) -> list[Started]:
        """All processes that were started to bring up agents."""
        return self._launcher.started

    async def restart(self, node: int) -> bool:
        """Start the agent of a node again; return whether it has connected.

        Meanwhile, `next` has to be called: it handles the agent's greeting.

        Raises:
            EchelonError, OSError: it could not be started.
        """
        last = self.known.get(node)
        return await self._launcher.call(node, **{REPLACES: str(last.hello.pid)} if last else {})

    async def next(self, deadline_s: float | None = None) -> PoolEvent | None:
        """Return the next event; None at the deadline."""
        try:
            event = await self._take(deadline_s)
            while _comes_from_rejected(event):
                event = await self._take(deadline_s)
        except TimeoutError:
            return None
        match event:
            case Received(agent=agent, message=message):
                return self._receive(event, agent, message)
            case Lost(agent=agent, reason=reason) if self.has(agent):
                self._lost.add(agent.node)
                del self.agents[agent.node]
                pid = agent.hello.pid
                self._note(
                    events.AgentLost(node=agent.node, name=agent.name, pid=pid, reason=reason)
                )
        return event

    def _receive(self, event: Received, agent: AgentHandle, message: Message) -> PoolEvent:
        """Take note of a message; return what it is to the controller."""
        match message:
            case Hello(fault=fault) if fault:
                self.reject(message)
                agent.link.say(Leave())
                if self.has(agent):  # it was accepted before it could start a zygote
                    del self.agents[agent.node]
                    return Lost(agent=agent, reason=fault, excluded=True)
            case Hello(node=node) if node in self.agents:
                agent.link.say(Leave())  # another agent of the node was first
            case Hello():
                self._take_in(agent)
            case Note() | Imported():
                self._record(agent, message)
            case Signalled(signal=signal.SIGTERM):
                # On preemption, Slurm signals all processes of a job except its batch script.
                reason = f"{agent.name} received SIGTERM"
                _log.info("%s: taken for a preemption", reason)
                return Stop("preemption", reason, 128 + signal.SIGTERM, signalled=True)
        return event

    def _record(self, agent: AgentHandle, what: Note | Imported) -> None:
        if isinstance(what, Imported):
            took_s, waited_s = what.seconds, what.waited_s
            self._note(events.ModulesImported(node=agent.node, seconds=took_s, waited_s=waited_s))
        else:
            self._note(events.AgentNote(node=agent.node, text=what.text))
            self._report(f"{agent.name}: {what.text}")

    def _take_in(self, agent: AgentHandle) -> None:
        hello, node = agent.hello, agent.node
        self.agents[node] = self.known[node] = agent
        self._lost.discard(node)
        self._launcher.on_connected(node)
        self._note(events.AgentJoined(node=node, name=hello.name, pid=hello.pid, gpus=hello.gpus))

    async def _take(self, deadline_s: float | None) -> PoolEvent:
        if not self._queue.empty():  # no timer for each of thousands of events
            return self._queue.get_nowait()
        left_s = None
        if deadline_s is not None and deadline_s < math.inf:
            left_s = max(0.0, deadline_s - time.monotonic())
        async with asyncio.timeout(left_s):
            return await self._queue.get()

    def reject(self, hello: Hello) -> None:
        """Exclude a node that failed its check."""
        self.unfit[hello.node] = hello
        self._note(events.NodeRejected(node=hello.node, name=hello.name, reason=hello.fault))

    def post(self, event: Stop | Hang) -> None:
        """Request a stop of the run, or report a hang of its ranks."""
        _log.info("received %s", event)
        self._queue.put_nowait(event)

    def wake(self) -> None:
        """Make `next` return."""
        self._queue.put_nowait(Woken())

    def has(self, agent: AgentHandle) -> bool:
        return self.agents.get(agent.node) is agent

    async def leave(self) -> None:
        """Dismiss the agents, and wait for the processes that started them."""
        _log.info("dismissing %d agents", len(self.agents))
        if self._pulse is not None:
            self._pulse.cancel()
        for agent in self.agents.values():
            agent.link.say(Leave())
        self._launcher.reap()
        self._launcher.dismiss()
        # The process that started a lost agent would wait for it much longer.
        deadline = time.monotonic() + (LOST_S if self._lost else LEAVE_S)
        while self._launcher.is_here() and time.monotonic() < deadline:
            self._dismiss_late()
            await asyncio.sleep(0.005)
        self._launcher.end()
        # A child may exit after the loop has closed the pipe that would report it.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._server.close()

    def _dismiss_late(self) -> None:
        """Dismiss agents that connect only now: a run may be stopped while they start."""
        while not self._queue.empty():
            match self._queue.get_nowait():
                case Received(agent=agent, message=Hello()):
                    agent.link.say(Leave())

    # --- what becomes an event ------------------------------------------------------------------

    def hear(self, agent: AgentHandle, message: Message) -> None:
        """Handle a message of an agent; the first one is its greeting."""
        if not isinstance(message, Pulse):
            _log.debug("%s sent %s", agent.name, message)
            self._queue.put_nowait(Received(agent=agent, message=message))
            return
        for _rank, step, *_ in message.ranks:
            self._furthest = max(self._furthest, (message.generation, step))
        if self.on_pulse:
            self.on_pulse(message)
        agent.pulse = message
        agent.pace = message.pace or agent.pace  # without ranks, keep the last one
        agent.held = any(seen[2] == "D" for seen in message.ranks)

    def _lose(self, agent: AgentHandle, reason: str) -> None:
        if time.monotonic() - self._resumed_s < SILENCE_S:
            reason = f"it disconnected {OUR_PAUSE} for {self._paused_s:.0f} s"
        self._queue.put_nowait(Lost(agent=agent, reason=reason))

    async def _keep_pulse(self) -> None:
        interval_s, stepping = ALIVE_S, -1
        due_s = time.monotonic() + interval_s
        while True:
            paused_s = await sleep_a_pulse()
            now_s = time.monotonic()
            generation, step = self._furthest
            if generation > stepping and step >= 0:
                stepping, interval_s = generation, FIRST_ALIVE_S
                due_s = min(due_s, now_s + interval_s)
            if now_s > due_s:
                seconds = self._sum_spent(generation)
                self._note(events.Heartbeat(generation=generation, step=step, seconds=seconds))
                interval_s = min(ALIVE_S, 2 * interval_s)
                due_s = now_s + interval_s
            if paused_s > SILENCE_S / 2:
                self._resume(now_s, paused_s)
            for agent in list(self.agents.values()):
                if now_s - agent.link.sent_s > PULSE_S / 2:  # otherwise it has just heard from us
                    agent.link.say(Pulse())
                if now_s - agent.link.heard_s > agent.link.silence_s:
                    agent.link.drop(f"no message for {agent.link.silence_s:g} s")

    def _sum_spent(self, generation: int) -> dict[str, float]:
        """Return how all ranks have spent their time so far: phase → seconds."""
        total: dict[str, float] = {}
        for pulse in (agent.pulse for agent in self.agents.values()):
            for phase, spent_us in pulse.spent.items() if pulse.generation == generation else ():
                total[phase] = round(total.get(phase, 0.0) + spent_us / 1e6, 6)
        return total

    def _end_with(self, pulse: asyncio.Task[None]) -> None:
        """End the run if the heartbeat task fails: agents would exit, and could not say why."""
        if not pulse.cancelled() and (error := pulse.exception()):
            message = f"internal error in the agent pool: {type(error).__name__}: {error}"
            self.post(Stop("start", message, 70, at_once=True))

    def _resume(self, now_s: float, paused_s: float) -> None:
        """Do not count the time during which we were suspended as silence of agents."""
        self._note(events.ControllerPaused(seconds=round(paused_s, 1)))
        self._paused_s, self._resumed_s = paused_s, now_s
        for agent in self.agents.values():
            agent.link.heard_s = now_s

    def _report_exit(self, started: Started, killed: bool) -> None:
        how = ", killed by a signal" if killed else ""
        _log.info("what started the agents of %s has exited%s", sorted(started.nodes), how)
        self._queue.put_nowait(StarterExited(started=started, killed=killed))

    def _handle_signal(self, number: int) -> None:
        self._signals += 1
        message = _SIGNALLED.get(number, f"the controller received {signal.Signals(number).name}")
        # A second signal is a request to stop at once; after a hang-up no one waits for the run.
        at_once = self._signals > 1 or number == signal.SIGHUP
        # What Ctrl-C does in a terminal: `except KeyboardInterrupt` works as it does there.
        ask = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self.signalled = Stop("cancelled", message, 128 + number, at_once, ask=ask)
        self.post(self.signalled)


def _comes_from_rejected(event: PoolEvent) -> bool:
    """Tell whether a rejected agent has sent something after its greeting, or was lost."""
    match event:
        case Received(message=Hello()):
            return False
        case Received(agent=agent) | Lost(agent=agent):
            return bool(agent.hello.fault)
    return False


def _allow_many_files() -> None:
    """Raise the limit of open files, usually 1024: thousands of agents may connect."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
