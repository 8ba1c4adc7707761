"""Tensors in one block of memory, with the layout of a safetensors file.

A training loop waits only for the copy into the block. The file is then written directly from the
block: nothing is gathered or read back, and the writing thread rarely holds the interpreter lock,
which the loop needs.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from echelon.errors import UsageError
from echelon.train.checkpoints.safetensors_file import Stored, TensorType, arrange, write_file

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
_MOVE = 4 << 20
"""Bytes that one thread copies before it takes other ones."""
DTYPES = {name: dtype for dtype, name in _KINDS.items()}


class TensorBlock:
    """Copies of tensors, in memory that is reused for tensors of the same shapes and types."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate memory for tensors like these.

        Raises:
            UsageError: safetensors does not support the type of one of them.
        """
        self._types = {name: type_of(name, tensor) for name, tensor in tensors.items()}
        _, places = arrange(self._types)
        gpu = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
        size = sum(one.nbytes for one in self._types.values())
        # Another thread than the loop's has another current device.
        with torch.cuda.device(gpu) if gpu else nullcontext():
            self._side: Any = torch.cuda.Stream() if gpu else None  # type: ignore[no-untyped-call]
            self._bytes = torch.empty(size, dtype=torch.uint8, pin_memory=gpu is not None)
        self._copied: Any = None
        self._parts = {
            name: self._bytes[begin : begin + self._types[name].nbytes]
            for name, begin in places.items()
        }
        self._copies = {
            name: part.view(tensors[name].dtype).view(tensors[name].shape)
            for name, part in self._parts.items()
        }

    def touch(self) -> None:
        """Have the system provide the memory now, instead of page by page in the first copy."""
        if self._side is None:  # pinned memory is there already
            self._bytes.zero_()

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
        sources = [tensors[name] for name in self._copies]
        with torch.no_grad():
            self._copy(sources)

    def _copy(self, sources: list[torch.Tensor]) -> None:
        copies = list(self._copies.values())
        if self._side is None:
            _copy_in_memory(copies, sources)
            return
        # Copy on a separate stream. The next change of the tensors waits for it on the GPU; the
        # host does not wait.
        current = torch.cuda.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            torch._foreach_copy_(copies, sources, non_blocking=True)
            self._copied = self._side.record_event()
        current.wait_event(self._copied)

    def write(self, path: Path) -> tuple[dict[str, Stored], int, str]:
        """Write and sync the file; return what is in it, its size and the digest of its header."""
        if self._copied is not None:
            self._copied.synchronize()
        return write_file(path, self._types, lambda name: self._parts[name].numpy().data)


def _copy_in_memory(copies: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors of equal types, with as many threads as torch has.

    Torch's own threads wait for each other after every tensor. If another process needs one of the
    cores, a copy of many tensors takes twenty times as long or more; here, the other threads do
    what one cannot.
    """
    moves: list[tuple[torch.Tensor, torch.Tensor, int]] = []
    for copy, source in zip(copies, sources, strict=True):
        if _is_plain(source):
            moves += [(copy, source, at) for at in range(0, source.nbytes, _MOVE)]
        else:
            copy.copy_(source)
    left = iter(moves)

    def move() -> None:
        for copy, source, at in left:
            size = min(_MOVE, source.nbytes - at)
            ctypes.memmove(copy.data_ptr() + at, source.data_ptr() + at, size)

    helpers = min(torch.get_num_threads(), len(moves)) - 1
    threads = [threading.Thread(target=move, name="copy", daemon=True) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    try:
        move()
    finally:
        for thread in threads:
            thread.join()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is its bytes in main memory, in order."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def type_of(name: str, tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor in a file.

    Raises:
        UsageError: safetensors does not support it.
    """
    if tensor.dtype not in _KINDS or tensor.layout != torch.strided:
        raise UsageError(
            f"cannot save the tensor '{name}' of type {tensor.dtype}, {tensor.layout}",
            hint="convert it to a dense tensor of another type, for example with view_as_real()",
        )
    return TensorType(_KINDS[tensor.dtype], tuple(tensor.shape))
