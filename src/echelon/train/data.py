"""Readers for the original files of well-known data sets."""

import gzip
import lzma
import struct
from pathlib import Path
from typing import IO, cast

import torch
from torch.utils.data import TensorDataset

from echelon.errors import NotFoundError, UsageError

_UNSIGNED_BYTE = 0x08
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
"""Mean and standard deviation of its pixels, where white is 1."""


def load_mnist(folder: Path, *, train: bool) -> TensorDataset:
    """Load MNIST's training or test set: images N×1×28×28, uint8, and labels.

    Raises:
        NotFoundError: a file does not exist.
        UsageError: a file is invalid or truncated, or the files do not match.
    """
    kind = "train" if train else "t10k"
    images = read_idx(folder / f"{kind}-images-idx3-ubyte")
    labels = read_idx(folder / f"{kind}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise UsageError(
            f"images {tuple(images.shape)} and labels {tuple(labels.shape)} in {folder} do not "
            "match",
            hint="use both files of one data set",
        )
    return TensorDataset(images.unsqueeze(1), labels.long())


def read_idx(path: Path) -> torch.Tensor:
    """Read an IDX file of bytes, such as MNIST's; plain, `.gz` or `.xz`.

    Raises:
        NotFoundError: it exists in none of these forms.
        UsageError: it is not an IDX file of bytes, or is truncated.
    """
    for suffix, opener in (("", open), (".gz", gzip.open), (".xz", lzma.open)):
        file = path.with_name(path.name + suffix)
        if file.is_file():
            with cast("IO[bytes]", opener(file, "rb")) as stream:
                return _parse_idx(stream.read(), file)
    raise NotFoundError(
        f"there is no {path.name} (.gz, .xz) in {path.parent}",
        hint="set the directory of MNIST's four files: --data-dir",
    )


def _parse_idx(content: bytes, path: Path) -> torch.Tensor:
    dimensions = content[3] if len(content) > 4 else 0
    head = 4 + 4 * dimensions
    if content[:3] != bytes([0, 0, _UNSIGNED_BYTE]) or not dimensions or len(content) < head:
        raise UsageError(f"{path} is not an IDX file of bytes", hint="download the file again")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    values = torch.frombuffer(bytearray(content[head:]), dtype=torch.uint8)
    if values.numel() != torch.Size(shape).numel():
        raise UsageError(
            f"{path} has {values.numel()} values, expected {torch.Size(shape).numel()}",
            hint="download the file again",
        )
    return values.reshape(shape)
