"""The agents of an attempt, as their controller has them: who is there, and what has happened.

Everything that happens (a message, a lost agent, a signal, a hang) becomes an entry of one queue,
so that the controller can take them out one by one and be read from top to bottom.
"""

import asyncio
import contextlib
import math
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from echelon.launch.backends.base import Started, Starter
from echelon.launch.pool.agent_launcher import AgentLauncher
from echelon.launch.pool.agent_server import AgentServer
from echelon.launch.pool.controller_events import AgentHandle, Entry, Gone, Lost
from echelon.launch.pool.hang import HangWatch
from echelon.launch.protocol.link import PULSE_S, SILENCE_S, sleep_a_pulse
from echelon.launch.protocol.messages import Hello, Leave, Message, Note, Pulse, Signalled
from echelon.launch.protocol.rank_environment import CONTROLLER, FILES, REPLACES
from echelon.launch.protocol.stop import Stop
from echelon.run.journal import NoteTaker
from echelon.run.verdict import OUR_PAUSE

LEAVE_S = 5.0
"""How long agents may take to go, once they are told to."""
LOST_S = 1.0
"""How long, where some are lost."""
ALIVE_S = 60.0
"""How often it is written down that the run goes on: of one that vanishes with its host, nothing
else says until when it was there."""


@dataclass(frozen=True, slots=True)
class Home:
    """Where a node's last agent was."""

    address: str
    pid: int
    gpus: int


class AgentPool:
    """See the module."""

    def __init__(
        self,
        starter: Starter,
        watch: HangWatch,
        note: NoteTaker,
        report: Callable[[str], None],
    ) -> None:
        self.agents: dict[int, AgentHandle] = {}
        """By node; those that are here."""
        self.unfit: dict[int, Hello] = {}
        """By node; those that were sent away, or not called, because they failed their check."""
        self.homes: dict[int, Home] = {}
        """By node; of those that ever came."""
        self._starter, self._watch, self._note, self._report = starter, watch, note, report
        self._launcher = AgentLauncher(starter, self._tell_gone)
        self._server = AgentServer(starter.nodes, received=self._hear, lost=self._lose, note=note)
        self._queue: asyncio.Queue[Entry] = asyncio.Queue()
        self._pulse: asyncio.Task[None] | None = None
        self._furthest = (0, -1)
        """The newest generation, and the step that it has come to."""
        self._lost: set[int] = set()
        """Nodes whose agents are gone, and have not come back."""
        self._signals = 0
        self._paused_s, self._resumed_s = 0.0, float("-inf")
        """For how long this process last did not run at all, and when that was over."""

    def hear_signals(self) -> None:
        """Make a wish to stop out of every signal; one may come before there are any agents."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._be_signalled, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            # A warning that the user's own `--signal=B:` asks for: we know the limit, and live on.
            loop.add_signal_handler(number, partial(self._note, "warned", signal=int(number)))

    async def start(self, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        """Listen where agents can reach us, and have them started where they are fit to be.

        Args:
            argv: their command.
            folder: for the logs of what brings them.
            env: their variables.
        """
        loop = asyncio.get_running_loop()
        self.hear_signals()
        loop.add_signal_handler(signal.SIGCHLD, self._launcher.reap)
        heard = await self._server.open(self._starter.candidates())
        few, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        private = {CONTROLLER: ",".join(heard), FILES: str(few)}
        fit = [node for node in range(self._starter.nodes) if node not in self.unfit]
        self._launcher.call_all(fit, argv, {**env, **private}, folder, self._server.key)
        _allow_many_files()
        self._pulse = loop.create_task(self._keep_pulse())
        self._pulse.add_done_callback(self._end_with)

    @property
    def started(self) -> list[Started]:
        """All processes that were to bring agents."""
        return self._launcher.started

    async def restart(self, node: int) -> bool:
        """Have the agent of a node started again; tell whether it has come.

        It comes as soon as somebody takes what happens out of the queue.

        Raises:
            EchelonError, OSError: it could not be started.
        """
        home = self.homes.get(node)
        return await self._launcher.call(node, **{REPLACES: str(home.pid)} if home else {})

    async def next(self, deadline_s: float | None = None) -> Entry | None:
        """Return the next thing that happened; None when the time is over."""
        try:
            agent, what = await self._take(deadline_s)
            while agent and agent.hello.fault and not isinstance(what, Hello):
                agent, what = await self._take(deadline_s)  # whatever else it says, it is not one
        except TimeoutError:
            return None
        match what:
            case Hello() if agent and what.fault:
                self.reject(what)
                agent.link.say(Leave())
            case Hello() if agent and what.node in self.agents:
                agent.link.say(Leave())  # another was sooner
            case Hello() if agent:
                self._take_in(agent)
            case Lost() if agent and self.has(agent):
                self._lost.add(agent.node)
                del self.agents[agent.node]
                pid = agent.hello.pid
                self._note("lost", node=agent.node, name=agent.name, pid=pid, reason=what.reason)
            case Note() if agent:
                self._note("note", node=agent.node, text=what.text)
                self._report(f"{agent.name}: {what.text}")
            case Signalled(signal=signal.SIGTERM) if agent:
                # Who preempts tells all processes of a job but its batch script.
                message = f"{agent.name} was told to stop (SIGTERM)"
                return agent, Stop("preemption", message, 128 + signal.SIGTERM, told=True)
        return agent, what

    def _take_in(self, agent: AgentHandle) -> None:
        hello, node = agent.hello, agent.node
        self.agents[node] = agent
        self.homes[node] = Home(agent.link.peer_address, hello.pid, hello.gpus)
        self._lost.discard(node)
        self._launcher.welcome(node)
        self._note("joined", node=node, name=hello.name, pid=hello.pid, gpus=hello.gpus)

    async def _take(self, deadline_s: float | None) -> Entry:
        if not self._queue.empty():  # no timer for each of thousands that come at once
            return self._queue.get_nowait()
        left_s = None
        if deadline_s is not None and deadline_s < math.inf:
            left_s = max(0.0, deadline_s - time.monotonic())
        async with asyncio.timeout(left_s):
            return await self._queue.get()

    def reject(self, hello: Hello) -> None:
        """Do without a node, for the fault that it has."""
        self.unfit[hello.node] = hello
        self._note("bad node", node=hello.node, name=hello.name, reason=hello.fault)

    def post(self, stop: Stop) -> None:
        """Have the run stop."""
        self._queue.put_nowait((None, stop))

    def wake(self) -> None:
        """Have whoever waits for the next thing look about."""
        self._queue.put_nowait((None, None))

    def has(self, agent: AgentHandle) -> bool:
        return self.agents.get(agent.node) is agent

    async def leave(self) -> None:
        """Send the agents away, and wait for what brought them."""
        if self._pulse is not None:
            self._pulse.cancel()
        for agent in self.agents.values():
            agent.link.say(Leave())
        self._launcher.reap()
        self._launcher.dismiss()
        # What brought an agent that is lost would wait for it much longer.
        deadline = time.monotonic() + (LOST_S if self._lost else LEAVE_S)
        while self._launcher.is_here() and time.monotonic() < deadline:
            self._dismiss_late()
            await asyncio.sleep(0.005)
        self._launcher.end()
        # What dies from here on may do so when the loop has closed the pipe that would tell.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._server.close()

    def _dismiss_late(self) -> None:
        """Send away who comes only now: a run may be stopped while its agents still start."""
        while not self._queue.empty():
            agent, what = self._queue.get_nowait()
            if agent and isinstance(what, Hello):
                agent.link.say(Leave())

    # --- what becomes an entry ------------------------------------------------------------------

    def _hear(self, agent: AgentHandle, message: Message) -> None:
        if not isinstance(message, Pulse):
            self._queue.put_nowait((agent, message))
            return
        self._feel(message)
        agent.pace = message.pace or agent.pace  # without ranks, the last one counts
        agent.held = any(seen[2] == "D" for seen in message.ranks)

    def _lose(self, agent: AgentHandle, reason: str) -> None:
        if time.monotonic() - self._resumed_s < SILENCE_S:
            reason = f"it left {OUR_PAUSE} for {self._paused_s:.0f} s"
        self._queue.put_nowait((agent, Lost(reason)))

    def _feel(self, pulse: Pulse) -> None:
        for rank, step, state, cpu_s in pulse.ranks:
            self._furthest = max(self._furthest, (pulse.generation, step))
            self._watch.feel(
                time.monotonic(),
                generation=pulse.generation,
                rank=rank,
                step=step,
                state=state,
                cpu_s=cpu_s,
            )

    async def _keep_pulse(self) -> None:
        noted_s = time.monotonic()
        while True:
            paused_s = await sleep_a_pulse()
            now_s = time.monotonic()
            if now_s - noted_s > ALIVE_S:
                generation, step = self._furthest
                self._note("alive", generation=generation, step=step)
                noted_s = now_s
            if paused_s > SILENCE_S / 2:
                self._resume(now_s, paused_s)
            for agent in list(self.agents.values()):
                if now_s - agent.link.said_s > PULSE_S / 2:  # else it knows that we live
                    agent.link.say(Pulse())
                if now_s - agent.link.heard_s > SILENCE_S:
                    agent.link.drop(f"nothing was heard of it for {SILENCE_S:g} s")
            if hang := self._watch.judge(now_s):
                self._queue.put_nowait((None, hang))

    def _end_with(self, pulse: asyncio.Task[None]) -> None:
        """End the run when its pulse has a fault: no agent stays without one, nor says why."""
        if not pulse.cancelled() and (error := pulse.exception()):
            message = f"a fault of Echelon's own: {type(error).__name__}: {error}"
            self._queue.put_nowait((None, Stop("start", message, 70, at_once=True)))

    def _resume(self, now_s: float, paused_s: float) -> None:
        """Blame no agent for a time in which we ourselves did not run."""
        self._note("paused", seconds=round(paused_s, 1))
        self._paused_s, self._resumed_s = paused_s, now_s
        for agent in self.agents.values():
            agent.link.heard_s = now_s

    def _tell_gone(self, started: Started) -> None:
        self._queue.put_nowait((None, Gone(started)))

    def _be_signalled(self, number: int) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        message = "interrupted" if number == signal.SIGINT else f"the controller got {name}"
        # A second signal is impatience; a hang-up means that nobody is there to wait.
        at_once = self._signals > 1 or number == signal.SIGHUP
        self._queue.put_nowait((None, Stop("cancelled", message, 128 + number, at_once)))


def _allow_many_files() -> None:
    """Make room for a connection to each of thousands of agents: 1024 files are usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
