"""Stand-ins for what a controller works with."""

import asyncio
from pathlib import Path

from echelon.core.shell import FakeShell
from echelon.launch.backends.base import Backend, NoStandby
from echelon.launch.backends.local import LocalAllocation, LocalStarter
from echelon.launch.pool.controller_events import AgentHandle, Woken
from echelon.launch.protocol.messages import Hello, Pace
from echelon.run.directory import RunDir


class FakeLink:
    """Keeps what it is to send."""

    peer_address = "127.0.0.1"

    def __init__(self):
        self.said = []

    def say(self, message):
        self.said.append(message)

    def drop(self, reason):
        self.said.append(reason)


def make_agent(node, pace=None):
    hello = Hello(node=node, name=f"node{node}", host="h", addresses=[])
    return AgentHandle(hello=hello, link=FakeLink(), pace=pace or Pace())


class FakePool:
    """An agent pool whose agents and events are given.

    An event of the script is what `next` returns, or a function of the pool that returns it, or
    None: nothing happens, for as long as the caller would wait. `restarts` says what becomes of
    each restart of an agent; the last one repeats.
    """

    def __init__(
        self, *nodes, script=(), restarts=("fails",), unfit=(), pace=None, fails=None, clock=None
    ):
        self.agents = {node: make_agent(node, pace) for node in nodes}
        self.unfit, self.known, self.started = {}, {}, []
        self.script, self.clock = list(script), clock
        self.restarts, self.ended, self.woken = 0, 0, 0
        self.signalled = None
        self.overlapped = False
        """Whether a restart began before a hanging one had ended."""
        self._results, self._fails = list(restarts), fails
        for node in unfit:
            self.reject(
                Hello(node=node, name=f"node{node}", host="h", addresses=[], fault="no disk")
            )

    async def start(self, *_, **__):
        if self._fails:
            raise self._fails

    async def leave(self):
        pass

    async def next(self, deadline_s=None):
        await asyncio.sleep(0)
        assert self.script or not self.clock, "the script has ended"
        event = self.script.pop(0) if self.script else None
        event = event(self) if callable(event) else event
        if event is None and self.clock:
            self.clock.now_s = max(self.clock.now_s, deadline_s)
        return event

    async def restart(self, node):
        self.overlapped |= self.restarts > self.ended
        self.restarts += 1
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if isinstance(result, Exception):
            raise result
        if result == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1
        if result == "unfit":
            self.unfit[node] = "its check failed"
        if result == "comes":
            self.agents[node] = make_agent(node)
        return result == "comes"

    def has(self, agent):
        return self.agents.get(agent.node) is agent

    def reject(self, hello):
        self.unfit[hello.node] = hello

    def post(self, stop):
        pass

    def wake(self):
        self.woken += 1


def joins(node):
    """An event of a script: a node's agent connects."""

    def join(pool):
        pool.agents[node] = make_agent(node)
        return Woken()

    return join


class FakeJournal:
    """Keeps what it is told."""

    run, attempt = RunDir(path=Path("/nowhere")), 1

    def __init__(self):
        self.reports, self.notes = [], []

    def report(self, text):
        self.reports.append(text)

    def note(self, event):
        self.notes.append(event)

    def now(self):
        return 0.0


class FakeRecovery:
    """No agent comes back."""

    def __init__(self):
        self.departed, self.begun = set(), []

    def begin(self, nodes=None):
        self.begun.append(nodes)

    def mark_departed(self, nodes):
        self.departed |= nodes

    async def find_departed(self, _nodes):
        pass

    def may_come(self, *, soon):  # noqa: ARG002
        return False

    def close(self):
        pass


class FakeStandby(NoStandby):
    """Counts how often it is withdrawn; follows as it was told, if it is wanted."""

    def __init__(self, follows=""):
        self.withdrawn, self._follows = 0, follows

    async def conclude(self, *, wanted):
        return self._follows if wanted else ""

    async def withdraw(self):
        self.withdrawn += 1


def make_backend(*, nodes=3, **parts):
    return Backend(
        **{
            "starter": LocalStarter(FakeShell(), nodes),
            "allocation": LocalAllocation(),
            "standby": FakeStandby(),
            **parts,
        }
    )
