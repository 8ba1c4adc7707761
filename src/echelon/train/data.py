"""Data sets that people know, in the files they come in."""

import gzip
import lzma
import struct
from pathlib import Path
from typing import IO, cast

import torch

from echelon.errors import NotFoundError, UsageError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> torch.Tensor:
    """Read an IDX file of bytes, as MNIST's are; plain, `.gz` or `.xz`.

    Raises:
        NotFoundError: it is there in none of these forms.
        UsageError: it is something else, or not whole.
    """
    for suffix, opener in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        file = path.with_name(path.name + suffix)
        if file.is_file():
            with cast("IO[bytes]", opener(file, "rb")) as stream:
                return _parse_idx(stream.read(), file)
    raise NotFoundError(
        f"there is no {path.name} (.gz, .xz) in {path.parent}",
        hint="name the folder with the four files of MNIST: --data-dir",
    )


def _parse_idx(content: bytes, path: Path) -> torch.Tensor:
    dimensions = content[3] if len(content) > 4 else 0
    head = 4 + 4 * dimensions
    if content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or not dimensions or len(content) < head:
        raise UsageError(f"{path} is not an IDX file of bytes", hint="fetch the file again")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    values = torch.frombuffer(bytearray(content[head:]), dtype=torch.uint8)
    if values.numel() != torch.Size(shape).numel():
        raise UsageError(
            f"{path} should hold {torch.Size(shape).numel()} bytes and holds {values.numel()}",
            hint="it is cut off: fetch the file again",
        )
    return values.reshape(shape)
