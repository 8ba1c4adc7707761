"""An agent's access to the run directory: all of it in one thread, in order.

The directory may be on storage that does not respond for a while. The agent's event loop continues
meanwhile: without its heartbeats the controller would give up the node.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from echelon.core.frozen import frozen
from echelon.core.proc import describe_process, tail
from echelon.launch.protocol.rank_environment import RankFiles
from echelon.launch.zygote.rank import DUMP, PATIENCE_S, read_record
from echelon.run.background_writer import AWAY, BackgroundWriter, pauses
from echelon.run.journal import write_error
from echelon.run.rank_logs import LogClock

_log = logging.getLogger(__name__)
READ_S = 5.0
"""Limit for reading a dead rank's log and record: the report of its exit waits for them."""
_CLOSE_S = 1.0
_LOG_POLL_S = 0.2

T = TypeVar("T")


@frozen
class Dumper:
    """A rank that is asked to write its stacks."""

    pid: int
    warm: bool
    """Whether it can: a rank that was started cold has no handler for it."""
    stacks: Path


class AgentFiles:
    """See the module."""

    def __init__(self) -> None:
        self._writer = BackgroundWriter("files")
        self._clock = LogClock()
        self._offset_s = time.time() - time.monotonic()
        """That of this node's clock, until the controller's is known."""

    async def ask(self, task: Callable[[], T], *, within_s: float | None = None) -> T:
        """Run a task in the thread, and return its result.

        Raises:
            TimeoutError: it is not done in time; if it has begun, it still runs.
            OSError: raised by the task.
        """
        answer: Future[T] = Future()

        def work() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller has timed out
            try:
                answer.set_result(task())
            except Exception as error:  # noqa: BLE001  it is raised in the caller
                answer.set_exception(error)

        self._writer.post(work)
        async with asyncio.timeout(within_s):
            return await asyncio.wrap_future(answer)

    async def insist(self, task: Callable[[], T]) -> T:
        """Run a task, and retry it for a while if storage is unavailable.

        Raises:
            OSError: storage stayed unavailable, or the task failed for another reason.
        """
        deadline = time.monotonic() + PATIENCE_S
        for pause_s in pauses():
            try:
                return await self.ask(task)
            except OSError as error:
                if error.errno not in AWAY or time.monotonic() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses() never ends")

    def say(self, text: str) -> None:
        """Write a line to the agent's own log."""
        _log.info("%s", text)

        def write() -> None:
            with contextlib.suppress(OSError):
                write_error(text)

        self._writer.post(write)

    def write(self, path: Path, content: bytes) -> None:
        """Write a file that only helps to explain something: nothing waits for it."""

        def write() -> None:
            with contextlib.suppress(OSError):
                path.touch(mode=0o600)
                path.write_bytes(content)

        self._writer.post(write)

    def close(self) -> None:
        """Wait a moment for pending tasks."""
        self._writer.close(_CLOSE_S)

    # --- logs -----------------------------------------------------------------------------------

    def set_clock(self, now_s: float) -> None:
        """Set the controller's time of day: clocks of nodes differ, and may be changed."""
        self._offset_s = now_s - time.monotonic()

    def now_s(self) -> float:
        """Return the time of day, by the controller's clock as soon as it is known."""
        return self._offset_s + time.monotonic()

    def follow(self, log: Path) -> None:
        """Start recording when a log grows."""
        self._writer.post(partial(self._clock.add, log))

    def finish(self, log: Path) -> None:
        """Record a log for the last time: nothing writes to it any more."""
        self._writer.post(lambda: self._clock.finish(log, self.now_s()))

    async def time_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOG_POLL_S)
            await self.ask(lambda: self._clock.tick(self.now_s()))

    async def read_end(self, files: RankFiles) -> tuple[dict[str, Any], str]:
        """Return a dead rank's record of its exception, and the end of its log."""
        try:
            return await self.ask(
                lambda: (read_record(files.error), tail(files.log)), within_s=READ_S
            )
        except TimeoutError:
            return {}, f"cannot read its log: storage did not respond for {READ_S:g} s"

    # --- stacks ---------------------------------------------------------------------------------

    async def dump(self, ranks: Mapping[int, Dumper]) -> dict[str, str]:
        """Have ranks write their stacks; return these, or else a description of the process."""
        try:
            found = await self._dump(ranks)
        except TimeoutError:
            found = {}
        return {
            str(rank): found.get(rank) or describe_process(asked.pid)
            for rank, asked in ranks.items()
        }

    async def _dump(self, ranks: Mapping[int, Dumper]) -> dict[int, str]:
        def sizes() -> dict[int, int]:
            return {rank: _size(asked.stacks) for rank, asked in ranks.items()}

        before = await self.ask(sizes, within_s=READ_S)
        for asked in ranks.values():
            if asked.warm:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(asked.pid, DUMP)
        for _ in range(20):
            await asyncio.sleep(0.05)
            now = await self.ask(sizes, within_s=READ_S)
            if all(not asked.warm or now[rank] > before[rank] for rank, asked in ranks.items()):
                break
        await asyncio.sleep(0.05)  # the last one may still be writing
        return await self.ask(
            lambda: {rank: tail(a.stacks, start=before[rank]) for rank, a in ranks.items()},
            within_s=READ_S,
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
