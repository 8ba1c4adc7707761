"""The processes that start agents: one for all nodes, or one for each node.

They are our children. The agents themselves may be on other hosts, and connect to us.
"""

import asyncio
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from echelon.core.proc import read_text
from echelon.launch.backends.base import CAUSE, AgentCommand, Started, Starter

_NOT_STARTED = re.compile(r"^srun: error: (Unable to create step|Task launch) for ", re.MULTILINE)
_KILLED = re.compile(r"^srun: error: (\S+): tasks? \S+: (?:Killed|Out Of Memory)$", re.MULTILINE)
END_S = 10.0
"""How long a process that is no longer wanted may take to exit."""


class AgentLauncher:
    """See the module."""

    def __init__(self, starter: Starter, gone: Callable[[Started, bool], None]) -> None:
        self.started: list[Started] = []
        """All processes that were ever started."""
        self._starter, self._report_exit = starter, gone
        self._command: AgentCommand | None = None
        self._living: dict[Started, asyncio.Future[bool] | None] = {}
        """Those that run, each with the future of an agent that `call` waits for."""
        self._awaited: dict[int, asyncio.Future[bool]] = {}
        """By node: agents that are being started again."""

    def call_all(self, nodes: Sequence[int], command: AgentCommand) -> None:
        """Start the agents of some nodes, for the first time."""
        self._command = command
        for started in self._starter.start(nodes, command) if nodes else ():
            self._add(started)

    async def call(self, node: int, **environ: str) -> bool:
        """Start the agent of a node again; return whether it has connected.

        Args:
            node: the node.
            environ: additional variables for it.

        Raises:
            EchelonError, OSError: it could not be started.
        """
        assert self._command is not None, "`call_all` comes first"
        command = replace(self._command, env={**self._command.env, **environ})
        coming: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._awaited[node] = coming
        starting = asyncio.ensure_future(asyncio.to_thread(self._starter.start, [node], command))
        # Even if this is cancelled, started processes must be tracked.
        starting.add_done_callback(partial(self._add_called, coming=coming))
        try:
            await asyncio.shield(starting)
            return await coming
        finally:
            coming.cancel()
            del self._awaited[node]
            for started in [one for one, whose in self._living.items() if whose is coming]:
                if not _has_come(coming):
                    started.end(signal.SIGTERM)  # srun passes it on
                    # A hanging srun does not, and such processes must not accumulate.
                    asyncio.get_running_loop().call_later(END_S, self._end_one, started)

    def on_connected(self, node: int) -> None:
        """Note that an agent has connected."""
        _answer(self._awaited.get(node), came=True)

    def reap(self) -> None:
        """Collect processes that have exited, and report each of them."""
        ended = {one: code for one in self._living if (code := one.poll()) is not None}
        for started, code in ended.items():
            _answer(self._living.pop(started), came=False)
            self._report_exit(started, code < 0)

    def is_here(self) -> bool:
        """Tell whether any process is left."""
        self.reap()
        return bool(self._living)

    def dismiss(self) -> None:
        """Signal processes that do not exit with their agents that no more are needed."""
        for started in self._living:
            started.dismiss()

    def end(self) -> None:
        """Kill the processes that are left."""
        for started in self._living:
            started.end()

    def _end_one(self, started: Started) -> None:
        self.reap()
        if started in self._living:
            started.end()

    def _add_called(
        self, starting: asyncio.Future[list[Started]], *, coming: asyncio.Future[bool]
    ) -> None:
        if starting.cancelled() or starting.exception():
            return  # `call` raises the error
        for started in starting.result():
            self._add(started, coming)
            if coming.cancelled():
                started.end(signal.SIGTERM)

    def _add(self, started: Started, coming: asyncio.Future[bool] | None = None) -> None:
        self.started.append(started)
        self._living[started] = coming
        self.reap()  # it may have exited already


def _answer(coming: asyncio.Future[bool] | None, *, came: bool) -> None:
    if coming and not coming.done():
        coming.set_result(came)


def _has_come(coming: asyncio.Future[bool]) -> bool:
    return coming.done() and not coming.cancelled() and coming.result()


def find_killed(path: Path) -> list[str]:
    """Return the hosts on which srun says that an agent was killed; it goes on with the others."""
    return _KILLED.findall(read_text(path))


def could_not_start(path: Path) -> bool:
    """Tell whether srun failed to start agents, as opposed to an agent that failed.

    If it cannot reach one node, it starts no agent, or ends those that it has started.
    """
    return bool(_NOT_STARTED.search(read_text(path)))


def read_reason(path: Path) -> str:
    """Return the line of a log that says why agents did not start.

    srun's first error is the cause; that it then kills the other tasks is not.
    """
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    causes = (line for line in lines if line.startswith(("srun: error:", CAUSE)))
    return next(causes, (lines or [""])[-1]).removeprefix(CAUSE)
