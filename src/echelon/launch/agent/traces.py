"""Reads from the node's ranks what they have recorded about their collectives."""

import asyncio
from pathlib import Path

from echelon.launch.protocol.collective_trace import Trace, read_trace

ANSWER_S = 2.0
"""How long a rank may take to answer. One that holds the interpreter lock never does."""
_MOST_BYTES = 32 << 20
"""torch records 2,000 collectives, about 1 MB."""


async def read_record(path: Path) -> bytes | None:
    """Return a rank's record; empty if it does not answer, None if it has no process group."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=_MOST_BYTES)
            try:
                return await _read_all(reader)
            finally:
                writer.close()
    except TimeoutError:
        return b""
    except OSError:
        return None


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while (part := await reader.read(1 << 20)) and len(parts) < _MOST_BYTES:
        parts += part
    return bytes(parts)


def reduce_record(record: bytes, *, now_s: float) -> Trace:
    """Return what a record says; a rank whose record is damaged counts as one that is silent."""
    try:
        return read_trace(record, now_s=now_s) if record else Trace(silent=True)
    except ValueError:
        return Trace(silent=True)
