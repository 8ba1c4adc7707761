"""Connections to the web page's server: how many there may be, and how long each may do nothing.

Any user of this host can connect. When there is no room left, the oldest connection that never
showed the token makes room, so strangers cannot keep the owner out.
"""

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

KNOWN = "echelon.known"
"""What the application sets in the scope of a request that brought the token."""
BACKLOG = 128
"""How many connections are accepted at once: far fewer than there is room for. A request that came
with its connection is read before that many others could push the connection out."""
MOST = 512
_FILES = 4096
_HEADERS_S = 10.0
"""How long a connection may take to send a request."""
_STALLED_S = 20.0
"""How long a reader may take nothing of what waits for it."""


def raise_file_limit() -> int:
    """Raise the number of files that this process may open, as far as needed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return _FILES if soft == resource.RLIM_INFINITY else soft


@dataclass(slots=True, kw_only=True)
class Room:
    """The connections that there are, and how many there may be."""

    most: int = MOST
    connections: dict["Connection", None] = field(default_factory=dict)
    """The oldest comes first."""

    def enter(self, connection: "Connection") -> None:
        """Take a connection in; drop another where there are too many."""
        if len(self.connections) >= self.most:
            # min() takes the first, the oldest, among equals.
            self.leave(last := min(self.connections, key=lambda one: (one.known, one.busy)))
            last.transport.abort()
        self.connections[connection] = None

    def leave(self, connection: "Connection") -> None:
        self.connections.pop(connection, None)


class Connection(H11Protocol):
    """One connection, with limits on what its other end may leave undone."""

    def __init__(self, *, room: Room, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._room, self._known = room, False
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether it waits for an answer of ours."""
        cycle: Any = self.cycle  # None before the first request, as is the scope
        return cycle is not None and not cycle.response_complete

    @property
    def known(self) -> bool:
        """Whether one of its requests brought the token."""
        scope: Any = self.scope
        return self._known or (scope is not None and KNOWN in scope)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._room.enter(self)
        self._time_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.leave(self)
        for timer in (self._request_timer, self._reader_timer):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._known = self.known  # the next request has a scope of its own
        super().data_received(data)
        self._time_request()

    def send_400_response(self, msg: str) -> None:
        """Refuse garbage; a request that came before it gets no answer any more."""
        if self.busy:
            self.cycle.disconnected = True  # else the application would send one, and fail
        try:
            super().send_400_response(msg)
        except h11.ProtocolError:  # an answer is under way: no other can be sent
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._time_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._time_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer:
            self._reader_timer.cancel()

    def _time_reader(self, size: int) -> None:
        self._reader_timer = self.loop.call_later(_STALLED_S, self._check_reader, size)

    def _check_reader(self, before: int) -> None:
        """Drop a reader that took nothing; a slow one may go on."""
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._time_reader(size)
        else:
            self.transport.abort()

    def _time_request(self) -> None:
        """Have the timer run exactly while a request is due."""
        if self.busy:
            if self._request_timer:
                self._request_timer.cancel()
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(_HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        self._request_timer = None
        if self.flow.write_paused:  # the end of a long answer: its reader has a timer too
            self._time_request()
        else:
            self.transport.abort()
