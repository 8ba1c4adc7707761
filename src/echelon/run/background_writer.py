"""File operations in a background thread: in order, and retried for as long as storage is away.

A network file system may hang for a minute or fail for a while, and a disk may be full for an
hour. A process that has to send heartbeats must not wait for that.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

AWAY = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
        getattr(errno, "EREMOTEIO", errno.EIO),  # not on macOS, where commands for hosts import it
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN),
    }
)
"""Errors of a file system that is unavailable, perhaps only for a while."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, where space may be freed."""
_ROOM = 10_000

Task = Callable[[], None]
T = TypeVar("T")


def pauses(first_s: float = 0.1, longest_s: float = 2.0) -> Iterator[float]:
    """Yield the pauses between retries, without end."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


def persist(task: Callable[[], T], *, within_s: float) -> T:
    """Run a task; retry it while the file system is unavailable. Blocks: not for an event loop.

    Raises:
        OSError: it stayed unavailable, or the task failed for another reason.
    """
    deadline = time.monotonic() + within_s
    for pause_s in pauses():
        try:
            return task()
        except OSError as error:
            if error.errno not in AWAY or time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s)
    raise AssertionError("there is always another try")


class BackgroundWriter:
    """Runs tasks in order; retries a task that fails because storage is unavailable or full.

    The thread is a daemon, so that a dead file server does not keep the process from exiting.
    """

    def __init__(
        self, name: str, *, tell_lost: Callable[[int], None] | None = None, room: int = _ROOM
    ) -> None:
        """Create a writer; its thread starts with the first task.

        Args:
            name: the thread's name.
            tell_lost: records how many tasks were dropped, once writing works again.
            room: how many tasks may wait; beyond it, the oldest is dropped.
        """
        self._name, self._tell_lost, self._room = name, tell_lost, room
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._untold = 0
        self._thread: threading.Thread | None = None
        self.trouble = ""
        """The last error of the file system; empty if there is none."""
        self.lost = 0
        """How many tasks were dropped."""

    @property
    def undone(self) -> int:
        """How many tasks are pending or dropped."""
        with self._changed:
            return len(self._tasks) + self._busy + self.lost

    def post(self, task: Task) -> None:
        """Queue a task. One that raises OSError is retried if that may help."""
        with self._changed:
            if self._closed:
                return
            self._tasks.append(task)
            if len(self._tasks) > self._room:
                self._tasks.popleft()
                self._lose()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, within_s: float) -> bool:
        """Wait until no task is pending; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, within_s)

    def close(self, within_s: float) -> bool:
        """Accept no more tasks, and wait for the pending ones; return whether all are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        done = self.settle(within_s)
        if done and self._thread is not None:
            self._thread.join()
        return done

    # --- in the thread --------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._tasks and not self._busy

    def _work(self) -> None:
        while (task := self._take()) is not None:
            if not self._try(task):
                with self._changed:
                    self._lose()
            self._report_lost()
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _take(self) -> Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._closed)
            if not self._tasks:
                return None
            self._busy = True
            return self._tasks.popleft()

    def _report_lost(self) -> None:
        """Record dropped tasks, in order with those before and after them."""
        with self._changed:
            count, self._untold = self._untold, 0
        if count and self._tell_lost and not self._try(partial(self._tell_lost, count)):
            with self._changed:
                self._untold += count

    def _lose(self) -> None:
        self.lost += 1
        self._untold += 1

    def _try(self, task: Task) -> bool:
        """Retry until it succeeds or cannot; return whether it succeeded."""
        for pause_s in pauses():
            try:
                task()
            except OSError as error:
                self.trouble = str(error)
                if error.errno not in AWAY | FULL:
                    return False
            except Exception as error:  # noqa: BLE001  the next tasks still run
                self.trouble = f"{type(error).__name__}: {error}"
                return False
            else:
                self.trouble = ""
                return True
            time.sleep(pause_s)
        raise AssertionError("there is always another try")
