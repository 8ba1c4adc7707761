"""Events: one JSON object per line, appended by one writer per file, read by anyone at any time.

A reader may come while a line is being written, or after its writer was killed in the middle of
one: an unfinished last line is left for the next read, and a line that is no JSON object is
passed over.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
        record = json.loads(line)
        return Event(
            time_s=float(record.pop("time")), kind=str(record.pop("kind")), data=dict(record)
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


class EventWriter:
    """Appends to one file. Each event is one `write`: lines never mix and nothing is buffered."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # A predecessor killed in mid-line must not swallow our first event.
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, kind: str, **data: Any) -> None:
        assert "time" not in data, "an event's time is the writer's clock"
        event = Event(time_s=self._clock(), kind=kind, data=data)
        os.write(self._file, f"{render_event(event)}\n".encode())

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


class EventReader:
    """Follows one file: each `read` returns what was added since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").split("\n")
        return [event for line in lines if (event := parse_event(line)) is not None]
