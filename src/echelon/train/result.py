"""What a training comes to, and what it took."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Result:
    """How a training ended."""

    step: int
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last validation, or else what was last told of the training."""
    samples: int = 0
    """Trained on since this start; not known of a loader of one's own."""
    train_s: float = 0.0
    peak_memory_mib: int = 0
    """Of the GPU; without one, of the process."""


def peak_memory_mib(device: torch.device) -> int:
    """Return the most memory that was in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
