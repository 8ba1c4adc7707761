"""Messages and data between two Echelon processes over one two-way byte stream, such as ssh's.

A message is a line with a JSON object. Data that a message announces follows it as raw bytes. The
stream may end at any byte, and the other end may send anything. In all cases, memory stays bounded
and errors are `EchelonError`.
"""

import contextlib
import io
import os
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

from echelon.core.records import parse_json, render_json, to_count
from echelon.core.terminal_escape import in_one_line
from echelon.errors import (
    ConflictError,
    EchelonError,
    NotFoundError,
    NotPermittedError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int], None]
"""Called with the number of transferred bytes, and with the number of all bytes to transfer."""
MOST_LINE_BYTES = 64 << 20
"""Longest message; the description of 50,000 files is far shorter."""
_SHOWN = 80
"""Bytes of an unexpected message that an error shows."""
_KINDS = {
    kind.exit_code: kind
    for kind in (
        *(UsageError, NotFoundError, UnavailableError),
        *(ConflictError, NotPermittedError, TimedOutError),
    )
}


class PatientFile(io.RawIOBase):
    """Reads from a file descriptor, with a time limit for each read."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.patience_s: float | None = None
        """Seconds; None to wait forever."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the available data.

        Raises:
            TimeoutError: no data came within the time limit.
        """
        if not select.select([self._handle], [], [], self.patience_s)[0]:
            raise TimeoutError(f"no data within {self.patience_s:g} s")
        data = os.read(self._handle, len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Stream:
    """One end of a two-way byte stream.

    Args:
        reader: a buffered binary file, such as `sys.stdin.buffer` or `Popen.stdout`.
        writer: a buffered binary file that only this stream writes to, such as `sys.stdout.buffer`
            or `Popen.stdin`.
        peer: the name of the other end in errors, such as a host name.
    """

    def __init__(self, reader: BinaryIO, writer: BinaryIO, *, peer: str = "the other end") -> None:
        self._reader, self._writer, self.peer = reader, writer, peer
        self._cut = self._reported = False
        self._closed: EchelonError | None = None
        """Why writing is not possible any more."""

    @property
    def is_cut(self) -> bool:
        """Whether the stream ended too early, without an error from the other end."""
        return self._cut

    # --- messages -----------------------------------------------------------------------------

    def send(self, record: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            EchelonError: the other end reported this error before it closed the stream.
            UnavailableError: the stream is closed.
        """
        self.write(render_json(record).encode() + b"\n")
        self.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next message.

        Raises:
            EchelonError: the other end reports this error; its class and hint are the same.
            UnavailableError: the stream ends, or the next line is not a message.
        """
        try:
            line = self._reader.readline(MOST_LINE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise self._fail() from error
        if len(line) > MOST_LINE_BYTES:
            raise self.refuse(f"a message of more than {MOST_LINE_BYTES:,} bytes")
        if not line.endswith(b"\n"):
            raise self._fail(line)
        try:
            record = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise self.refuse(_show(line)) from error
        if not isinstance(record, dict):
            raise self.refuse(_show(line))
        if "error" in record:
            raise parse_error(record["error"], self.peer)
        return record

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Also report an error in the block to the other end, which raises it when it reads.

        Close the stream after an error: the other end may be writing, and only reads once the
        stream is closed. In nested blocks, an error is reported once.
        """
        try:
            yield
        except EchelonError as error:
            if not self._cut and not self._reported:
                self._reported = True
                with contextlib.suppress(EchelonError):
                    self.send({"error": describe_error(error)})
            raise

    def refuse(self, what: str) -> EchelonError:
        """Return the error for data that the other end must not send."""
        return UnavailableError(
            f"unexpected data from {self.peer}: {what}",
            hint="use the same version of Echelon on both ends, and let shell startup files such as"
            " ~/.bashrc print nothing in shells that are not interactive",
        )

    def _fail(self, got: bytes = b"") -> EchelonError:
        self._cut = True
        after = f" after: {_show(got)}" if got else ""
        return UnavailableError(
            f"the connection to {self.peer} was lost{after}",
            hint="run the same command again: it continues with what is missing",
        )

    # --- data ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write raw bytes; see `send` for errors."""
        try:
            self._writer.write(data)
        except (OSError, ValueError) as error:
            raise self._explain() from error

    def flush(self) -> None:
        """Write the buffered data; see `send` for errors."""
        try:
            self._writer.flush()
        except (OSError, ValueError) as error:
            raise self._explain() from error

    def _explain(self) -> EchelonError:
        """Return why the other end has closed the stream: the error that it reported, if any."""
        if self._closed is None:  # closing the file after an error may write again
            self._closed = self._fail()
            with contextlib.suppress(OSError, ValueError, RecursionError):
                while line := self._reader.readline(MOST_LINE_BYTES):
                    record = parse_json(line)
                    if isinstance(record, dict) and "error" in record:
                        self._closed = parse_error(record["error"], self.peer)
                        self._cut = False
        return self._closed

    def read(self, count: int) -> bytes:
        """Return exactly this many raw bytes.

        Raises:
            UnavailableError: the stream ends earlier.
        """
        parts: list[bytes] = []
        while count:
            try:
                part = self._reader.read(min(count, CHUNK_BYTES))
            except (OSError, ValueError) as error:
                raise self._fail() from error
            if not part:
                raise self._fail()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _show(line: bytes) -> str:
    text = in_one_line(line[:_SHOWN].decode(errors="replace").strip())
    return f"'{text}…'" if len(line) > _SHOWN else f"'{text}'"


def error_class(code: object) -> type[EchelonError]:
    """Return the class of the error that ends a command with an exit code."""
    return _KINDS.get(to_count(code) or 0, EchelonError)


def describe_error(error: EchelonError) -> dict[str, Any]:
    """Return an error as JSON can express it."""
    return {"message": error.message, "hint": error.hint, "code": error.exit_code}


def parse_error(about: Any, peer: str) -> EchelonError:
    """Return the error that a host has described; its class and hint are the same."""
    found = about if isinstance(about, dict) else {}
    kind = error_class(found.get("code"))
    message, hint = str(found.get("message", "unknown error")), str(found.get("hint", ""))
    return kind(f"{peer}: {message[:10_000]}", hint=hint[:10_000])
