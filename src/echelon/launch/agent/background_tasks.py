"""Tasks of the agent that nothing awaits: their failures are passed to one handler."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """See the module."""

    def __init__(self) -> None:
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called with the exception of a task; set before the first task starts."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error and self.on_failure:
            self.on_failure(error)
