"""Values that all ranks agree on; a single rank returns its own.

Every function is a collective: all ranks must call it, in the same order.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def is_alone() -> bool:
    """Whether there is no process group, or this is its only rank."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def collective_device() -> torch.device:
    """Return the device for collectives: the GPU with NCCL, the CPU with gloo."""
    return torch.device("cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu")


def sum_over_ranks(values: torch.Tensor | Sequence[float]) -> list[float]:
    """Return the element-wise sums of the ranks' numbers."""
    if not isinstance(values, torch.Tensor):
        if is_alone():
            return list(values)
        values = torch.tensor(values, dtype=torch.float64)
    if is_alone():
        return [float(value) for value in values.tolist()]
    moved = values.to(collective_device(), copy=True)
    dist.all_reduce(moved)
    return [float(value) for value in moved.tolist()]


def least_over_ranks(value: int) -> int:
    """Return the minimum of the ranks' numbers."""
    if is_alone():
        return value
    number = torch.tensor([value], device=collective_device())
    dist.all_reduce(number, op=dist.ReduceOp.MIN)
    return int(number.item())


def number_of_rank_0(value: int) -> int:
    """Return rank 0's number, on all ranks."""
    if is_alone():
        return value
    number = torch.tensor([value], device=collective_device())
    dist.broadcast(number, src=0)
    return int(number.item())
