"""Files in the safetensors format, written and read in pieces, with checksums of their blocks.

The checksums are to find damage, not forgery. CRC-32 is many times as fast as SHA-256 where the
processor has no instructions for the latter, and a save would mostly compute that.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from echelon.core.records import parse_json

WIDTHS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}
"""Bytes per element, by the format's name of the type."""
_BLOCKS = 32
_LEAST_BLOCK = 128 << 10
_WRITE = 2 << 20
"""Bytes that are written at a time."""
_LONGEST_HEADER = 100_000_000
"""As in the safetensors library."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTHS[self.dtype]


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file."""

    type: TensorType
    begin: int
    """Its first byte in the file."""
    block: int = 0
    """Bytes that each checksum covers."""
    checksums: tuple[int, ...] = ()
    """CRC-32 of each block; none if the file is verified as a whole."""


def to_type(dtype: Any, shape: Any) -> TensorType:
    """Return a type that was read from a file.

    Raises:
        ValueError: it is none.
    """
    if dtype not in WIDTHS:
        raise ValueError(f"unknown type {dtype!r}")
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in shape):
        raise ValueError(f"{shape!r} is not a shape")
    return TensorType(dtype, tuple(shape))


def arrange(
    types: Mapping[str, TensorType], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """Return the beginning of a file with these tensors, and where each begins after it."""
    # The widest types first, so that each tensor starts at a multiple of its width.
    order = sorted(types, key=lambda name: (-WIDTHS[types[name].dtype], name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    places, end = {}, 0
    for name in order:
        places[name] = end
        begin, end = end, end + types[name].nbytes
        header[name] = {
            "dtype": types[name].dtype,
            "shape": list(types[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def block_size(nbytes: int) -> int:
    """Return how many bytes of a tensor have one checksum: few of them, and still small blocks."""
    return max(_LEAST_BLOCK, -(-nbytes // _BLOCKS))


def write_file(
    path: Path,
    types: Mapping[str, TensorType],
    read: Callable[[str], bytearray | memoryview],
    *,
    metadata: Mapping[str, str] | None = None,
) -> tuple[dict[str, Stored], int, str]:
    """Write and sync a file; `read` returns the bytes of a tensor.

    Returns: the tensors in the file, its size, and the digest of its header.
    """
    head, places = arrange(types, metadata)
    stored, end = {}, len(head)
    with path.open("wb") as file:
        file.write(head)
        for name, place in places.items():
            content, block = memoryview(read(name)), block_size(types[name].nbytes)
            if len(content) != types[name].nbytes:
                raise ValueError(f"{name} has another size than its shape says")
            checksums = []
            # In pieces of many blocks: large writes, of what the processor's caches still hold.
            piece = block * max(1, _WRITE // block)
            for begin in range(0, len(content), piece):
                view = content[begin : begin + piece]
                checksums += [crc32(view[n : n + block]) for n in range(0, len(view), block)]
                file.write(view)
            stored[name] = Stored(types[name], len(head) + place, block, tuple(checksums))
            end += len(content)
        file.flush()
        os.fsync(file.fileno())
    return stored, end, hashlib.sha256(head).hexdigest()


def read_header(handle: int) -> tuple[bytes, dict[str, Stored]]:
    """Return the beginning of a file, and the tensors in it.

    Raises:
        ValueError: it is not a safetensors file.
        OSError: it cannot be read.
    """
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if not 0 < length <= min(size - 8, _LONGEST_HEADER):
        raise ValueError("no safetensors file")
    head = os.pread(handle, 8 + length, 0)
    header = parse_json(head[8:])
    if not isinstance(header, dict):
        raise ValueError("no safetensors file")  # noqa: TRY004  damaged content
    stored = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(dtype), "shape": shape, "data_offsets": [int(begin), int(end)]}:
                kind = to_type(dtype, shape)
                if 0 <= begin <= end <= size - len(head) and end - begin == kind.nbytes:
                    stored[name] = Stored(kind, len(head) + begin)
                    continue
        raise ValueError(f"'{name}' is not as safetensors describes a tensor")
    return head, stored
