"""The debug logs of a run: what its controller and agents did, and when.

Events and the job's output are for users, and say what happened to the run. A debug log says what
one process did. A thread writes it, so that storage that hangs or fails does not block the process,
and its size is bounded.
"""

import contextlib
import heapq
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from echelon.core.records import UnreadableError, open_regular
from echelon.run.background_writer import BackgroundWriter
from echelon.run.directory import RunDir
from echelon.run.event_log import open_at_line_start, write_whole

LIMIT_BYTES = 4 << 20
"""Size at which a log is renamed to `….log.1` and begun anew: twice as much is kept."""
LONGEST = 4000
"""Length at which a message is cut."""
_ROOM = 2000
"""Lines that are kept while storage is unavailable."""
_CLOSE_S = 1.0
"""How long the end of a process waits for its last lines."""
_LOGGER = "echelon"
_OLDER = ".1"


class DebugLog:
    """Writes what the modules of this process log. One per process; use it with `with`."""

    def __init__(
        self,
        path: Path,
        level: str,
        *,
        clock: Callable[[], float] = time.time,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """Prepare it.

        Args:
            path: the file; its folder is created.
            level: `info` or `debug`.
            clock: returns the time of day.
            limit_bytes: the size at which a new file is begun.
        """
        self._path, self._clock, self._limit_bytes = path, clock, limit_bytes
        self._level = logging.DEBUG if level == "debug" else logging.INFO
        self._handler = _Handler(self._take)
        self._writer = BackgroundWriter("debug-log", tell_lost=self._tell_lost, room=_ROOM)
        self._file, self._size = -1, 0

    def __enter__(self) -> Self:
        logger = logging.getLogger(_LOGGER)
        logger.setLevel(self._level)
        logger.addHandler(self._handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        logger = logging.getLogger(_LOGGER)
        if error is not None:
            logger.info("ended by an exception", exc_info=error)
        logger.removeHandler(self._handler)
        logger.setLevel(logging.NOTSET)
        if self._writer.close(_CLOSE_S) and self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, level: str, text: str) -> None:
        self._writer.post(partial(self._append, _render(self._clock(), level, text)))

    # --- in the thread --------------------------------------------------------------------------

    def _tell_lost(self, count: int) -> None:
        self._append(_render(self._clock(), "INFO", f"debug_log: {count} lines were dropped"))

    def _append(self, line: bytes) -> None:
        if self._file >= 0 and self._size + len(line) > self._limit_bytes:
            self._close()
            self._path.replace(f"{self._path}{_OLDER}")
        if self._file < 0:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = open_at_line_start(self._path)
            self._size = os.fstat(self._file).st_size
        try:
            write_whole(self._file, line)
        except OSError:
            self._close()  # a stale handle stays stale
            raise
        self._size += len(line)

    def _close(self) -> None:
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            os.close(file)


class _Handler(logging.Handler):
    """Passes on each record as text: its level, then the module and the message."""

    def __init__(self, take: Callable[[str, str], None]) -> None:
        super().__init__()
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.name.rpartition('.')[2]}: {self.format(record)}"
        except Exception:  # noqa: BLE001  a message that cannot be formatted ends no run
            text = f"{record.name}: {record.msg!r}"
        self._take(record.levelname, text)


def _render(now_s: float, level: str, text: str) -> bytes:
    """Return a line; further lines of a message are indented."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    indented = short.replace("\n", "\n    ")
    return f"{_render_time(now_s)} {level} {indented}\n".encode(errors="backslashreplace")


def _render_time(now_s: float) -> str:
    return f"{datetime.fromtimestamp(now_s, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


# --- reading --------------------------------------------------------------------------------------


class DebugLine(NamedTuple):
    """A message in a debug log."""

    time_s: float
    writer: str
    """`controller`, or `agent-3` for that of node 3."""
    text: str
    """Its level, module and message; it may have several lines."""

    def render(self) -> str:
        return f"{_render_time(self.time_s)} {self.writer} {self.text}"


def read_debug_lines(run: RunDir) -> Iterator[DebugLine]:
    """Yield the lines of all debug logs of a run, merged by time."""
    for attempt in run.attempt_numbers():
        logs = sorted(run.debug_logs(attempt).glob("*.log"))
        yield from heapq.merge(*map(_read_log, logs), key=lambda line: line.time_s)


def _read_log(path: Path) -> Iterator[DebugLine]:
    """Yield the lines of a log, the older file first."""
    last: DebugLine | None = None
    for name in (f"{path}{_OLDER}", path):
        with contextlib.suppress(FileNotFoundError, UnreadableError), open_regular(Path(name)) as f:
            for line in f.read().decode(errors="replace").splitlines():
                fresh = _parse_line(path.stem, line)
                if fresh is None and last is not None:
                    last = last._replace(text=f"{last.text}\n{line}")
                    continue
                if last is not None:
                    yield last
                last = fresh
    if last is not None:
        yield last


def _parse_line(writer: str, line: str) -> DebugLine | None:
    """Parse the first line of a message; None if it is none."""
    time_text, _, text = line.partition(" ")
    try:
        return DebugLine(datetime.fromisoformat(time_text).timestamp(), writer, text)
    except (ValueError, OverflowError):
        return None
