"""Tensors in one block of memory, with the layout of a safetensors file.

A training loop waits only for the copy into the block. The file is then written directly from the
block, in large pieces: nothing is gathered or read back, and the writing thread rarely holds the
interpreter lock, which the loop needs.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from echelon.errors import UsageError

_PIECE = 16 * 2**20
"""Bytes that are hashed and written at a time."""
_KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Type names in safetensors."""


class TensorBlock:
    """Copies of tensors, in memory that is reused for tensors of the same shapes and types."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate memory for tensors like these.

        Raises:
            UsageError: safetensors does not support the type of one of them.
        """
        # The widest types first, so that each tensor starts at a multiple of its width.
        order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        places, end = {}, 0
        for name in order:
            begin, end = end, end + tensors[name].numel() * tensors[name].element_size()
            places[name] = (begin, end)
        self._head = _render_head(tensors, places)
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        self._side: Any = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        self._copied: Any = None
        self._bytes = torch.empty(end, dtype=torch.uint8, pin_memory=on_gpu)
        self._copies = {
            name: self._bytes[begin:end].view(tensors[name].dtype).view(tensors[name].shape)
            for name, (begin, end) in places.items()
        }

    def fits(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Tell whether these have the names, shapes and types that memory is allocated for."""
        return tensors.keys() == self._copies.keys() and all(
            copy.shape == tensors[name].shape and copy.dtype == tensors[name].dtype
            for name, copy in self._copies.items()
        )

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors that fit; afterwards they may change."""
        if not tensors:
            return
        sources = [tensors[name].detach() for name in self._copies]
        copies = list(self._copies.values())
        if self._side is None:
            torch._foreach_copy_(copies, sources)
            return
        # Copy on a separate stream. The next change of the tensors waits for it on the GPU; the
        # host does not wait.
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            torch._foreach_copy_(copies, sources, non_blocking=True)
            self._copied = self._side.record_event()
        current.wait_event(self._copied)

    def write(self, path: Path) -> tuple[str, int]:
        """Write and sync the file; return its SHA-256 and its size."""
        if self._copied is not None:
            self._copied.synchronize()
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for piece in self._pieces():
                digest.update(piece)
                file.write(piece)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest(), size

    def _pieces(self) -> Iterator[bytes | memoryview]:
        yield self._head
        body = self._bytes.numpy().data
        for begin in range(0, len(body), _PIECE):
            yield body[begin : begin + _PIECE]


def _render_head(
    tensors: Mapping[str, torch.Tensor], places: Mapping[str, tuple[int, int]]
) -> bytes:
    """Return the header: a length, and JSON of that length."""
    header = {
        name: {
            "dtype": _kind_of(name, tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": list(place),
        }
        for name, place in places.items()
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _kind_of(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _KINDS or tensor.layout != torch.strided:
        raise UsageError(
            f"cannot save the tensor '{name}' of type {tensor.dtype}, {tensor.layout}",
            hint="convert it to a dense tensor of another type, for example with view_as_real()",
        )
    return _KINDS[tensor.dtype]
