"""The processes that bring up agents: one for all nodes, or one for each; and again for one.

They are our children. An agent itself may be on another host, and is heard of by its link.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from echelon.launch.backends.base import CAUSE, Started, Starter

_NOT_STARTED = re.compile(r"^srun: error: (Unable to create step|Task launch) for ", re.MULTILINE)
END_S = 10.0
"""How long a process that is no longer wanted may take to end."""


class AgentLauncher:
    """See the module."""

    def __init__(self, starter: Starter, gone: Callable[[Started], None]) -> None:
        self.started: list[Started] = []
        """All that ever were."""
        self._starter, self._tell_gone = starter, gone
        self._start: Callable[..., list[Started]] = lambda *_: []
        self._living: dict[int, tuple[Started, asyncio.Future[bool] | None]] = {}
        """By pid; and who waits for the agent."""
        self._awaited: dict[int, asyncio.Future[bool]] = {}
        """By node: agents that were called again."""

    def call_all(
        self,
        nodes: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str],
        logs: Path,
        key: bytes,
    ) -> None:
        """Have the agents of some nodes started: of all that there are to be."""

        def start(nodes: Sequence[int], **more: str) -> list[Started]:
            return self._starter.start(nodes, argv, {**env, **more}, logs, key)

        self._start = start
        for started in start(nodes) if nodes else ():
            self._add(started)

    async def call(self, node: int, **environ: str) -> bool:
        """Have the agent of a node started again; tell whether it has come, and not gone before.

        Args:
            node: which.
            environ: what it is told besides.

        Raises:
            EchelonError, OSError: it could not be started.
        """
        coming: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._awaited[node] = coming
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, [node], **environ))
        # Whatever becomes of this, what was started is not to be forgotten.
        starting.add_done_callback(partial(self._add_called, coming=coming))
        try:
            await asyncio.shield(starting)
            return await coming
        finally:
            coming.cancel()
            del self._awaited[node]
            for pid in [pid for pid, (_, whose) in self._living.items() if whose is coming]:
                if not _has_come(coming):
                    _signal_group(pid, signal.SIGTERM)  # which srun passes on
                    # One that hangs does not; nor must such processes become many.
                    asyncio.get_running_loop().call_later(END_S, self._end_one, pid)

    def welcome(self, node: int) -> None:
        """Tell whoever waits for it that an agent has come."""
        _answer(self._awaited.get(node), came=True)

    def reap(self) -> None:
        """Collect those that have ended, and tell of each."""
        for pid in [pid for pid in self._living if not _is_there(pid)]:
            started, coming = self._living.pop(pid)
            _answer(coming, came=False)
            self._tell_gone(started)

    def is_here(self) -> bool:
        """Tell whether any is left."""
        self.reap()
        return bool(self._living)

    def dismiss(self) -> None:
        """Tell those that would stay without agents that no more are wanted."""
        for pid, (started, _) in self._living.items():
            if started.dismissal:
                os.kill(pid, started.dismissal)  # it may have ended, but is not collected

    def end(self) -> None:
        """Kill those that are left."""
        for pid in self._living:
            _signal_group(pid, signal.SIGKILL)

    def _end_one(self, pid: int) -> None:
        self.reap()
        if pid in self._living:
            _signal_group(pid, signal.SIGKILL)

    def _add_called(
        self, starting: asyncio.Future[list[Started]], *, coming: asyncio.Future[bool]
    ) -> None:
        if starting.cancelled() or starting.exception():
            return  # whoever waits hears of it
        for started in starting.result():
            self._add(started, coming)
            if coming.cancelled():
                _signal_group(started.pid, signal.SIGTERM)

    def _add(self, started: Started, coming: asyncio.Future[bool] | None = None) -> None:
        self.started.append(started)
        self._living[started.pid] = started, coming
        self.reap()  # it may be gone already


def _answer(coming: asyncio.Future[bool] | None, *, came: bool) -> None:
    if coming and not coming.done():
        coming.set_result(came)


def _has_come(coming: asyncio.Future[bool]) -> bool:
    return coming.done() and not coming.cancelled() and coming.result()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _is_there(pid: int) -> bool:
    """Tell whether a child is still there, and collect it if not."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def could_not_start(path: Path) -> bool:
    """Tell whether srun has failed to start agents, as opposed to an agent that has failed.

    With one node that it cannot reach, it starts none, or ends those that it has started.
    """
    try:
        return bool(_NOT_STARTED.search(path.read_text(errors="replace")))
    except OSError:
        return False


def read_reason(path: Path) -> str:
    """Return the line that says why agents did not come.

    What srun says first is the cause; that it then kills the other tasks is not.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip()]
    causes = (line for line in told if line.startswith(("srun: error:", CAUSE)))
    return next(causes, (told or [""])[-1]).removeprefix(CAUSE)
