"""Event files: one JSON object per line, appended by one writer per file, read by anyone.

A reader may read while a line is being written, or after its writer was killed in the middle of
one. It leaves an unfinished last line for the next read, and skips lines that are not events.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from echelon.core.codec import decode, encode
from echelon.core.frozen import frozen
from echelon.core.records import UnreadableError, is_time, open_regular, parse_json
from echelon.run.background_writer import BackgroundWriter

MOST_READ = 256 << 20
"""The most bytes of a file that one `read` returns."""

# Created once: `json.dumps` would create one for every event.
_ENCODER = json.JSONEncoder(separators=(",", ":"), default=asdict)


class Event:
    """The base of all events, which are frozen dataclasses.

    A direct subclass stands for one kind of file; its subclasses are the events in such a file.
    """

    __slots__ = ()
    kind: ClassVar[str]
    """Its name in the file."""
    kinds: ClassVar[dict[str, type[Any]]] = {}
    """The events of a file, by name."""

    def __init_subclass__(cls) -> None:
        if Event in cls.__bases__:
            cls.kinds = {}
        else:
            cls.kinds[cls.kind] = cls


@frozen
class Unknown:
    """An event without a class: written by another version, or damaged."""

    kind: str
    data: Mapping[str, Any]


E = TypeVar("E", bound=Event)


class Record(NamedTuple, Generic[E]):
    """One line of an event file."""

    time_s: float
    """Seconds since the epoch, by the writer's clock: compare times of one writer only."""
    event: E | Unknown
    data: Mapping[str, Any]
    """The fields as written, including those of other versions."""


def render_event(time_s: float, event: Event | Unknown) -> str:
    """Return an event as a line, without a newline."""
    values = event.data if isinstance(event, Unknown) else encode(event)
    return _ENCODER.encode({"time": time_s, "kind": event.kind, **values})


def parse_event(line: str, events: type[E]) -> Record[E] | None:
    """Parse a line of a file of these events; None if it is not an event."""
    try:
        record = parse_json(line)
        time_s, kind = float(record.pop("time")), record.pop("kind")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if not is_time(time_s) or not isinstance(kind, str):
        return None
    if cls := events.kinds.get(kind):
        try:
            return Record(time_s, decode(cls, record), record)
        except ValueError:
            pass
    return Record(time_s, Unknown(kind=kind, data=record), record)


class EventWriter:
    """Appends to one file. Each call is one `write`: lines never mix and nothing is buffered."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = open_at_line_start(path)

    def write(self, event: Event | Unknown) -> None:
        self.write_all([(self._clock(), event)])

    def write_all(self, events: Iterable[tuple[float, Event | Unknown]]) -> None:
        """Append several events with their times, in one `write`."""
        os.write(self._file, b"".join(_line(time_s, event) for time_s, event in events))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventLog:
    """Appends to one file in the background: `write` neither blocks nor fails."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        tell_lost: Callable[[int], Event | Unknown],
        room: int = 10_000,
    ) -> None:
        """Keep at most `room` events while storage is away; `tell_lost` reports dropped ones."""
        self._path, self._clock, self._make_lost = path, clock, tell_lost
        self._file = -1
        self.writer = BackgroundWriter("events", tell_lost=self._tell_lost, room=room)
        """For other records that have to be written in order with the events."""

    def write(self, event: Event | Unknown) -> None:
        self.writer.post(partial(self._append, _line(self._clock(), event)))

    def close(self, within_s: float) -> bool:
        """Write what is left; return whether that was done in time."""
        if not self.writer.close(within_s):
            return False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        return True

    def _tell_lost(self, count: int) -> None:
        self._append(_line(self._clock(), self._make_lost(count)))

    def _append(self, line: bytes) -> None:
        if self._file < 0:
            self._file = open_at_line_start(self._path)
        try:
            write_whole(self._file, line)
        except OSError:
            # A stale handle stays stale, and part of a line may have been written.
            file, self._file = self._file, -1
            with suppress(OSError):
                os.close(file)
            raise


def _line(time_s: float, event: Event | Unknown) -> bytes:
    return f"{render_event(time_s, event)}\n".encode()


def write_whole(file: int, line: bytes) -> None:
    """Write a line.

    Raises:
        OSError: not all of it could be written.
    """
    if (written := os.write(file, line)) < len(line):
        raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were written")


def open_at_line_start(path: Path) -> int:
    """Open a file for appending; end a line that the previous writer did not finish."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError:
        os.close(file)
        raise
    return file


class EventReader(Generic[E]):
    """Follows one file: each `read` returns what was added since the last."""

    def __init__(self, path: Path, events: type[E]) -> None:
        self._path, self._events = path, events
        self._offset = 0

    def read(self) -> list[Record[E]]:
        """Return what was added, at most `MOST_READ` bytes of it; nothing if there is no file."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                added = file.read(MOST_READ)
        except (FileNotFoundError, UnreadableError):
            return []
        whole = added[: added.rfind(b"\n") + 1]
        if not whole and len(added) == MOST_READ:
            whole = added  # longer than any line that we write
        self._offset += len(whole)
        lines = whole.decode(errors="replace").split("\n")
        return [found for line in lines if (found := parse_event(line, self._events)) is not None]
