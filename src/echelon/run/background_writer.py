"""Dealing with files without waiting for them: a thread does it, in order, however long it takes.

A network file system may not answer for a minute or fail for a while, and a disk may be full for an
hour. A process whose pulse others feel must not wait for any of that.
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
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN),
    }
)
"""Errors of a file system that is away, and may come back."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk where somebody may yet make room."""
_ROOM = 10_000

Task = Callable[[], None]
T = TypeVar("T")


def pauses(first_s: float = 0.1, longest_s: float = 2.0) -> Iterator[float]:
    """Return how long to wait before each new try, without end."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


def persist(task: Callable[[], T], *, within_s: float) -> T:
    """Do something; try again for a while where the file system is away. Waits: not for a loop.

    Raises:
        OSError: it was away all the time, or something else is wrong.
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
    """Does tasks one after the other. One that fails for want of storage is tried until it works.

    The thread is a daemon: one that a dead file server holds does not keep its process from ending.
    """

    def __init__(
        self, name: str, *, tell_lost: Callable[[int], None] | None = None, room: int = _ROOM
    ) -> None:
        """Make one; its thread begins with the first task.

        Args:
            name: of the thread.
            tell_lost: writes down how many tasks were given up, once that can be written.
            room: how many tasks may wait; with more the oldest is given up.
        """
        self._name, self._tell_lost, self._room = name, tell_lost, room
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._untold = 0
        self._thread: threading.Thread | None = None
        self.trouble = ""
        """What is wrong with the file system, as far as it says."""
        self.lost = 0
        """Tasks that were given up."""

    @property
    def undone(self) -> int:
        """How many tasks are not done, or never will be."""
        with self._changed:
            return len(self._tasks) + self._busy + self.lost

    def post(self, task: Task) -> None:
        """Have something done. It may raise OSError, and is then tried again if that may help."""
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
        """Wait until all is done; return whether it is."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, within_s)

    def close(self, within_s: float) -> bool:
        """Take no more, and wait until all is done; return whether it is."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        done = self.settle(within_s)
        if done and self._thread is not None:
            self._thread.join()
        return done

    # --- the thread's ---------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self._tasks and not self._busy

    def _work(self) -> None:
        while (task := self._take()) is not None:
            self._do(task)
            self._confess()
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

    def _do(self, task: Task) -> None:
        if not self._try(task):
            with self._changed:
                self._lose()

    def _confess(self) -> None:
        """Write down what was lost, between what came before it and what came after."""
        with self._changed:
            count, self._untold = self._untold, 0
        if count and self._tell_lost and not self._try(partial(self._tell_lost, count)):
            with self._changed:
                self._untold += count

    def _lose(self) -> None:
        self.lost += 1
        self._untold += 1

    def _try(self, task: Task) -> bool:
        """Try until it works, or cannot; return whether it did."""
        for pause_s in pauses():
            try:
                task()
            except OSError as error:
                self.trouble = str(error)
                if error.errno not in AWAY | FULL:
                    return False
            except Exception as error:  # noqa: BLE001  one task's fault is not the next one's
                self.trouble = f"{type(error).__name__}: {error}"
                return False
            else:
                self.trouble = ""
                return True
            time.sleep(pause_s)
        raise AssertionError("there is always another try")
