"""Events: one JSON object per line, appended by one writer per file, read by anyone at any time.

A reader may come while a line is being written, or after its writer was killed in the middle of
one: an unfinished last line is left for the next read, and a line that is no JSON object with a
kind and a possible time is passed over.
"""

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from echelon.core.records import UnreadableError, is_time, open_regular, parse_json
from echelon.run.background_writer import BackgroundWriter

MOST_READ = 256 << 20
"""How many bytes of a file are read at once, at most."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))
"""Made once: `json.dumps` would make one for every event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    time_s: float
    """Seconds since the epoch, by the writer's clock: compare times of one writer only."""
    kind: str
    data: Mapping[str, Any]


def render_event(event: Event) -> str:
    """Return its line, without a line end."""
    return _ENCODER.encode({"time": event.time_s, "kind": event.kind, **event.data})


def parse_event(line: str) -> Event | None:
    """Return the event, or None for a line that is none."""
    try:
        record = parse_json(line)
        time_s = float(record.pop("time"))
        if not is_time(time_s):
            return None
        return Event(time_s=time_s, kind=str(record.pop("kind")), data=dict(record))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


class EventWriter:
    """Appends to one file. Each event is one `write`: lines never mix and nothing is buffered."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = _open_at_line_start(path)

    def write(self, kind: str, **data: Any) -> None:
        os.write(self._file, _line(self._clock(), kind, data))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EventLog:
    """Appends to one file by a scribe: `write` never waits, and never fails.

    What storage that was away for long has cost is an event too: `lost events`, with their count.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float], room: int = 10_000) -> None:
        self._path, self._clock = path, clock
        self._file = -1
        self.scribe = BackgroundWriter("events", tell_lost=self._tell_lost, room=room)
        """For what else has to be written in this order."""

    def write(self, kind: str, **data: Any) -> None:
        self.scribe.post(partial(self._append, _line(self._clock(), kind, data)))

    def close(self, within_s: float) -> bool:
        """Write what is left; return whether that could be done in time."""
        if not self.scribe.close(within_s):
            return False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        return True

    def _tell_lost(self, count: int) -> None:
        self._append(_line(self._clock(), "lost events", {"count": count}))

    def _append(self, line: bytes) -> None:
        if self._file < 0:
            self._file = _open_at_line_start(self._path)
        try:
            _write_whole(self._file, line)
        except OSError:
            # A handle that has become stale stays so; and part of a line may have been written.
            file, self._file = self._file, -1
            with suppress(OSError):
                os.close(file)
            raise


def _line(time_s: float, kind: str, data: Mapping[str, Any]) -> bytes:
    assert "time" not in data, "an event's time is the writer's clock"
    return f"{render_event(Event(time_s=time_s, kind=kind, data=data))}\n".encode()


def _write_whole(file: int, line: bytes) -> None:
    if (written := os.write(file, line)) < len(line):
        raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were written")


def _open_at_line_start(path: Path) -> int:
    """Open a file to append lines: one that a predecessor did not finish must not swallow ours."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")
    except OSError:
        os.close(file)
        raise
    return file


class EventReader:
    """Follows one file: each `read` returns what was added since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        """Return what was added, up to `MOST_READ` bytes of it; what is no file has nothing."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                added = file.read(MOST_READ)
        except (FileNotFoundError, UnreadableError):
            return []
        whole = added[: added.rfind(b"\n") + 1]
        if not whole and len(added) == MOST_READ:
            whole = added  # no line of ours is so long
        self._offset += len(whole)
        lines = whole.decode(errors="replace").split("\n")
        return [event for line in lines if (event := parse_event(line)) is not None]
