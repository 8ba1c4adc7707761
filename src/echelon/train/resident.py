"""Data that are kept on the GPU: if a data set fits, it is copied there once.

This needs a data set of tensors. A batch is then a set of their rows, which the step itself reads;
the host only sends the indices.
"""

from collections.abc import Iterator

import torch

from echelon.train.loading import Portion, Rows
from echelon.train.randomness import epoch_key
from echelon.train.sampler import ElasticSampler, split

SHARE = 0.5
"""Fraction of the GPU's free memory for data; the rest is for the model and its activations."""


def fits(tensors: tuple[torch.Tensor, ...], device: torch.device, *, share: float = SHARE) -> bool:
    """Tell whether tensors are small enough to be kept on a GPU."""
    free, _ = torch.cuda.mem_get_info(device)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= share * free


class ResidentSource:
    """Portions of data on the device, in the order of a sampler."""

    def __init__(
        self, tensors: tuple[torch.Tensor, ...], sampler: ElasticSampler, device: torch.device
    ) -> None:
        self.order, self._device = sampler, device
        self._tensors = tuple(tensor.to(device) for tensor in tensors)
        self._key = torch.zeros((), dtype=torch.int64, device=device)

    def portions(self) -> Iterator[Portion]:
        sampler = self.order
        self._key.fill_(epoch_key(sampler.seed, sampler.epoch))
        order = sampler.order().to(self._device)
        for start in range(sampler.cursor, sampler.usable, sampler.global_batch):
            total = min(sampler.global_batch, sampler.usable - start)
            mine = split(total, sampler.rank, sampler.world_size)
            # If there is no sample for a rank, the first sample of the batch stands in.
            first, last = (mine.start, mine.stop) if mine else (0, 1)
            rows = Rows(self._tensors, order[start + first : start + last], self._key)
            yield Portion(rows, total, len(mine))
