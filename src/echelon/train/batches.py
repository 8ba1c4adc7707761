"""Batches of any shape: tensors, and tuples, lists and dictionaries of them. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a batch of the same shape, with every tensor in it changed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # namedtuple: separate arguments
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, change) for value in batch)
    return batch


def map_others(batch: Any, told: Callable[[str], None]) -> None:
    """Call a function with the representation of everything in a batch that is not a tensor."""
    if isinstance(batch, Mapping):
        for key, value in batch.items():
            told(repr(key))
            map_others(value, told)
    elif isinstance(batch, list | tuple):
        for value in batch:
            map_others(value, told)
    elif not isinstance(batch, torch.Tensor):
        told(repr(batch))


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def samples_in(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def divide(batch: Any, parts: int) -> list[Any]:
    """Divide a batch of tensors into parts of about the same size, none of them empty."""
    if parts == 1:
        return [batch]
    if isinstance(batch, torch.Tensor):
        return list(batch.chunk(parts))
    if isinstance(batch, Mapping):
        columns = {key: divide(value, parts) for key, value in batch.items()}
        count = len(next(iter(columns.values())))
        return [{key: column[n] for key, column in columns.items()} for n in range(count)]
    return [list(row) for row in zip(*(divide(value, parts) for value in batch), strict=True)]


def read_rows(tensors: tuple[torch.Tensor, ...], indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return rows of tensors; images in channels-last format keep it."""
    return tuple(_select(tensor, indices) for tensor in tensors)


def _select(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    # With one channel both formats are the same; use the default one.
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if last and not tensor.is_contiguous():
        return tensor.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
    return tensor.index_select(0, indices)
