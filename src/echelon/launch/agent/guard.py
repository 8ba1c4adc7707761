"""A process that outlives its agent, and then ends what the agent had started.

Ranks die with their zygote, and the zygote with its agent; but DataLoader workers outlive a killed
rank, and nobody is left to end them when agent and zygote are killed together. The guard holds the
other end of a pipe: when it closes, the guard kills every group it was told of.
"""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from echelon.launch.protocol.leftovers import await_trackers, end_group, list_groups, remove_files


class Guard:
    """The agent's end. Made before anything else, so that its fork holds nothing."""

    def __init__(self, scratch: Path, lock: int) -> None:
        """Start one.

        Args:
            scratch: the agent's folder, to be removed.
            lock: an open file that says that the folder is in use.
        """
        self._scratch, self._lock = scratch, lock
        self._groups: set[int] = set()
        self.pid = 0
        self._pipe = -1
        self.start()

    def start(self) -> None:
        """Start the guard, anew if somebody has killed it."""
        if self._pipe >= 0:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._pipe)
                _watch(read_end, self._scratch, self._lock)
            finally:
                os._exit(1)  # never back into the agent's own code
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
        with contextlib.suppress(BrokenPipeError):  # its death is noticed elsewhere
            os.write(self._pipe, line.encode())


def _watch(pipe: int, scratch: Path, lock: int) -> None:
    """Wait for the agent to go; then clean up behind it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # Whoever reads our output or the agent's connection to its end must not wait for us.
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
    found = list_groups()
    for group in groups:
        end_group(group, found)
    remove_files(groups)
    if groups:
        await_trackers(groups)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)
