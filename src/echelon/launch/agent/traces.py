"""Reads what the node's ranks, and NCCL in them, have recorded about collectives."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from echelon.launch.protocol.collective_trace import Trace, read_trace
from echelon.launch.protocol.nccl_counts import Counts, read_counts

ANSWER_S = 2.0
"""How long a rank may take to answer. One that holds the interpreter lock never does."""
_MOST_BYTES = 32 << 20
"""torch records 2,000 collectives, about 1 MB."""
_NCCL_ADDRESS = "localhost:28028"
_NCCL_GREETING = (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 1\n", b"SET FORMAT json\n")
_LISTENING = "0A"
"""In `/proc/net/tcp`."""


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


async def ask_nccl(environ: Mapping[str, str], pids: Mapping[int, int]) -> Counts:
    """Return NCCL's own counts of all ranks of the job; empty if NCCL does not answer.

    Args:
        environ: that of the ranks.
        pids: process ids of this node's ranks. One of them listens, for all of the job's.
    """
    host, _, port = environ.get("NCCL_RAS_ADDR", _NCCL_ADDRESS).rpartition(":")
    try:
        if not pids or not _listens(int(port)):
            return {}
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                for line in _NCCL_GREETING:
                    writer.write(line)
                    await reader.readline()
                writer.write(b"STATUS\n")
                return read_counts(await _read_all(reader), pids)
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return {}


def _listens(port: int) -> bool:
    """Tell whether a process of this user listens: others could answer anything."""
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_, uid = line.split()[:8]
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                return int(uid) == os.getuid()
    return False
