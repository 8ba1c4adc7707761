"""A process that outlives its agent, and then ends what the agent started.

Ranks die with their zygote, and the zygote with its agent. But DataLoader workers outlive a killed
rank, and nothing else would end them if agent and zygote are killed together. The guard reads from
a pipe: when the agent's end closes, it kills every process group that it was told to watch.
"""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from echelon.launch.zygote.leftovers import await_trackers, end_groups


class Guard:
    """The agent's end. Created before anything else, so that the fork inherits little."""

    def __init__(self, scratch: Path, lock: int) -> None:
        """Start the guard.

        Args:
            scratch: the agent's folder, to be removed.
            lock: the open, locked file that marks the folder as in use.
        """
        self._scratch, self._lock = scratch, lock
        self._groups: set[int] = set()
        self.pid = 0
        self._pipe = -1
        self.start()

    def start(self) -> None:
        """Start the guard, or restart it after it was killed."""
        if self._pipe >= 0:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._pipe)
                _watch(read_end, self._scratch, self._lock)
            finally:
                os._exit(1)  # never return into the agent's code
        os.close(read_end)
        for group in self._groups:
            self._tell(f"+{group}\n")

    def watch(self, group: int) -> None:
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died; the agent restarts it
            os.write(self._pipe, line.encode())


def _watch(pipe: int, scratch: Path, lock: int) -> None:
    """Wait until the agent has exited, then clean up after it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # Readers of the agent's output and connections must see their end, though we still run.
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(nothing, target)
    first, last = sorted((pipe, lock))
    os.closerange(3, first)
    os.closerange(first + 1, last)
    os.closerange(last + 1, 1024)
    groups: set[int] = set()
    with os.fdopen(pipe) as lines:
        for line in lines:
            group = int(line[1:])
            (groups.add if line[0] == "+" else groups.discard)(group)
    end_groups(groups)
    if groups:
        await_trackers(groups)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)
