"""Messages between two processes of one host, through a socket pair: each packet is one message."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable

from echelon.launch.protocol.messages import ZYGOTE_PACKET, Message, decode, encode


class MessageSocket:
    """One end of such a pair, in an event loop."""

    def __init__(self, end: socket.socket) -> None:
        self._end: socket.socket | None = end
        self._listens = False
        self._received: Callable[[Message], None] = lambda _message: None
        self._lost: Callable[[], None] = lambda: None

    def listen(self, received: Callable[[Message], None], lost: Callable[[], None]) -> None:
        """Receive messages from now on; `lost` is called when the other end was closed."""
        self._received, self._lost = received, lost
        if self._end is not None and not self._listens:
            self._listens = True
            self._end.setblocking(False)
            asyncio.get_running_loop().add_reader(self._end, self._hear)

    def send(self, message: Message, handle: int = -1, *, waits: bool = False) -> None:
        """Send a message, with an open file if there is one; nothing happens once it is closed.

        Args:
            message: the message.
            handle: the number of the file.
            waits: wait for a slow receiver; otherwise the message is dropped.
        """
        if self._end is None:
            return
        packet, handles = json.dumps(encode(message)).encode(), [handle] if handle >= 0 else []
        # If the other end is closed, that is about to be noticed.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._end.setblocking(waits)
            socket.send_fds(self._end, [packet], handles)

    def close(self) -> None:
        if self._end is not None:
            if self._listens:
                asyncio.get_running_loop().remove_reader(self._end)
            self._end.close()
            self._end = None

    def _hear(self) -> None:
        assert self._end is not None
        self._end.setblocking(False)
        try:
            data = self._end.recv(ZYGOTE_PACKET)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if data:
            self._received(decode(json.loads(data)))
        else:
            self.close()
            self._lost()
