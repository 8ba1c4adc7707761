"""Another user of this machine who opens connections as fast as one process can.

Bounded in time and number, and to loopback alone.
"""

import errno
import os
import signal
import socket
import struct
import time
from collections import deque
from contextlib import contextmanager

OTHER = 12345
"""A uid without an account."""
MOST_S = 60.0
MOST_CONNECTIONS = 5_000_000
HELD = 4000
"""Connections that the flood keeps open; the oldest makes room for the next."""
_RESET = struct.pack("ii", 1, 0)


@contextmanager
def flood(address, *, seconds=MOST_S, says=b"", holds=True, nice=-10):
    """Flood an address from a process of another user while the block lasts.

    Args:
        address: host, in 127.0.0.0/8, and port.
        seconds: when it ends by itself, at most `MOST_S`.
        says: what each connection sends.
        holds: whether connections are kept open, rather than reset at once.
        nice: its priority: as it is, a whole core's worth also on a busy machine.
    """
    assert address[0].startswith("127.")
    child = os.fork()
    if child == 0:
        try:
            os.nice(nice)
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            _connect_again_and_again(address, min(seconds, MOST_S), says, holds=holds)
        finally:
            os._exit(0)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _connect_again_and_again(address, seconds, says, *, holds):
    ends_s = time.monotonic() + seconds
    held = deque()
    for count in range(MOST_CONNECTIONS):
        if count % 64 == 0 and time.monotonic() > ends_s:
            return
        link = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        # Reset when closed: no port stays in TIME_WAIT.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        failure = link.connect_ex(address)
        if failure == 0 and says:
            link.send(says)
        if failure not in (0, errno.EINPROGRESS):
            link.close()
            while held:
                held.popleft().close()
            continue
        held.append(link)
        if len(held) > (HELD if holds else 64):
            held.popleft().close()
