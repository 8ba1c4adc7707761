"""How a training ended."""

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
    """From the last validation, or without one from the last progress line."""
    samples: int = 0
    """Samples trained on since this start; 0 with your own loader."""
    train_s: float = 0.0
    peak_memory_mib: int = 0
    """Peak memory of the GPU, or of the process without a GPU."""


def peak_memory_mib(device: torch.device) -> int:
    """Return the peak memory usage so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 2**10
