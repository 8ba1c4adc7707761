"""What ranks find out together; alone, a rank agrees with itself.

Every call is a collective: all ranks make it, in the same order.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def is_alone() -> bool:
    """Whether there is no process group, or nobody else in it."""
    return not dist.is_initialized() or dist.get_world_size() == 1


def collective_device() -> torch.device:
    """Return where a tensor must be for the others: NCCL takes what is on the GPU, gloo not."""
    return torch.device("cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu")


def sum_over_ranks(values: torch.Tensor | Sequence[float]) -> list[float]:
    """Return the sums of numbers that each rank has its own of."""
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
    """Return the smallest of the ranks' numbers."""
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
