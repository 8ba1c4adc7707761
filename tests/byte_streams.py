"""Two ends of a byte stream in one process, which can be cut after any byte."""

import contextlib
import socket
import threading
from dataclasses import dataclass, field

from echelon.clusters.ssh.stream import Stream


class Cutting:
    """A writer that closes the connection after so many bytes."""

    def __init__(self, own, most):
        self._own, self._most, self.count = own, most, 0

    def write(self, data):
        left = len(data) if self._most is None else self._most - self.count
        part = bytes(data[: max(left, 0)])
        self._own.sendall(part)
        self.count += len(part)
        if len(part) < len(data):
            self._own.shutdown(socket.SHUT_RDWR)
            raise BrokenPipeError
        return len(data)

    def flush(self):
        pass


@dataclass
class Outcome:
    laptop: object = None
    host: object = None
    """What each end returned, or the exception that it raised."""
    up: int = 0
    down: int = 0
    """Bytes from the laptop, and to it."""
    errors: list = field(default_factory=list)

    def check(self):
        """Raise the laptop's error first, as a user sees it."""
        for one in (self.laptop, self.host):
            if isinstance(one, BaseException):
                raise one
        return self


def exchange(laptop, host, *, cut_up=None, cut_down=None):
    """Call both ends, each with its stream, in threads; return what came of it.

    Args:
        laptop: is called with its stream.
        host: likewise.
        cut_up: after how many bytes from the laptop the connection is lost.
        cut_down: the same for bytes from the host.
    """
    ours, theirs = socket.socketpair()
    outcome = Outcome()
    writers = Cutting(ours, cut_up), Cutting(theirs, cut_down)

    def end(name, call, own, writer):
        reader = own.makefile("rb")
        try:
            setattr(outcome, name, call(Stream(reader, writer, peer=name)))
        except BaseException as error:  # noqa: BLE001  the test looks at it
            setattr(outcome, name, error)
        finally:
            # As a pipe would: what was written can still be read.
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while isinstance(getattr(outcome, name), BaseException) and reader.read(1 << 16):
                    pass
            reader.close()

    threads = [
        threading.Thread(target=end, args=("laptop", laptop, ours, writers[0])),
        threading.Thread(target=end, args=("host", host, theirs, writers[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ours.close()
    theirs.close()
    outcome.up, outcome.down = (writer.count for writer in writers)
    return outcome


def talk(*pieces):
    """An end that writes bytes, whatever they are, then reads until the other one closes."""

    def call(stream):
        for piece in pieces:
            if callable(piece):
                piece(stream)
            else:
                stream.write(piece)
        return stream._reader.readline()

    return call
