"""A state to convert, whatever format it comes from."""

from collections.abc import Callable, Mapping
from typing import Any

from echelon.core.frozen import frozen
from echelon.train.checkpoints.safetensors_file import TensorType

DCP_METADATA = ".metadata"
"""The file that makes a directory a checkpoint of torch.distributed.checkpoint."""


@frozen
class Source:
    """A state whose tensors are read when they are needed."""

    step: int
    state: Any
    """Its structure, with `{"$tensor": name}` in place of tensors."""
    types: Mapping[str, TensorType]
    read: Callable[[str], bytearray]
    """Returns the bytes of a tensor."""
