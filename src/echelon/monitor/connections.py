"""Limits on connections to the page's server: their number, and how long they may be idle.

Any user of this host can connect. At the limit, the oldest connection without the token is dropped,
so that other users cannot lock the owner out.
"""

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

KNOWN = "echelon.known"
"""Key that the application sets in the scope of a request with the token."""
BACKLOG = 128
"""Connections that are accepted at once: far fewer than the limit, so that a request that arrives
with its connection is read before others can displace it."""
MOST = 512
_FILES = 4096
_HEADERS_S = 10.0
"""Seconds that a connection may take to send a request."""
_STALLED_S = 20.0
"""Seconds after which a reader that accepts no data is dropped."""


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as needed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return _FILES if soft == resource.RLIM_INFINITY else soft


@dataclass(slots=True, kw_only=True)
class Room:
    """The open connections, and their limit."""

    most: int = MOST
    connections: dict["Connection", None] = field(default_factory=dict)
    """The oldest comes first."""

    def enter(self, connection: "Connection") -> None:
        """Add a connection; drop another one at the limit."""
        if len(self.connections) >= self.most:
            # min() takes the first, the oldest, among equals.
            self.leave(last := min(self.connections, key=lambda one: (one.known, one.busy)))
            last.transport.abort()
        self.connections[connection] = None

    def leave(self, connection: "Connection") -> None:
        self.connections.pop(connection, None)


class Connection(H11Protocol):
    """One connection, with time limits for its peer."""

    def __init__(self, *, room: Room, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._room, self._known = room, False
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether it is waiting for a response."""
        cycle: Any = self.cycle  # None before the first request, as is the scope
        return cycle is not None and not cycle.response_complete

    @property
    def known(self) -> bool:
        """Whether one of its requests had the token."""
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
        self._known = self.known  # the next request has its own scope
        super().data_received(data)
        self._time_request()

    def send_400_response(self, msg: str) -> None:
        """Reject an invalid request; an earlier one on this connection gets no response."""
        if self.busy:
            self.cycle.disconnected = True  # otherwise the application would try to send one
        try:
            super().send_400_response(msg)
        except h11.ProtocolError:  # a response has already started
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
        """Drop a reader that accepted nothing; a slow one may continue."""
        size = self.transport.get_write_buffer_size()
        if size < before:
            self._time_reader(size)
        else:
            self.transport.abort()

    def _time_request(self) -> None:
        """Run the timer exactly while a request is expected."""
        if self.busy:
            if self._request_timer:
                self._request_timer.cancel()
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(_HEADERS_S, self._give_up)

    def _give_up(self) -> None:
        self._request_timer = None
        if self.flow.write_paused:  # the end of a long response, which has its own timer
            self._time_request()
        else:
            self.transport.abort()
