"""Choose the source of batches for given data and a given device.

A data set of tensors that fits on the GPU is copied there once. A batch is then a set of their
rows, which the step itself reads; the host only sends the indices.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from echelon.errors import UsageError
from echelon.train.loading import (
    DatasetSource,
    LoaderSource,
    Portion,
    ResumableLoader,
    Rows,
    Source,
    length_of,
    tensors_of,
)
from echelon.train.process_group import Group
from echelon.train.randomness import epoch_key
from echelon.train.sampler import ElasticSampler, split

SHARE = 0.5
"""Fraction of the GPU's free memory for data; the rest is for the model and its activations."""


def open_source(
    data: Dataset[Any] | DataLoader[Any],
    world: Group,
    *,
    global_batch: int,
    seed: int = 0,
    drop_last: bool = False,
    workers: int = 0,
    keyed: bool = False,
    by_name: bool = False,
    share: float = SHARE,
) -> Source:
    """Return the source of a rank's portions of data.

    Args:
        data: a data set, which is divided among the ranks, or this rank's own loader.
        world: this rank's place and device.
        global_batch: samples per step, over all ranks.
        seed: determines their order.
        drop_last: drop the last batch of an epoch if it is smaller.
        workers: number of processes that load data.
        keyed: whether to add a key per sample.
        by_name: whether the indices of a batch's samples have to be known.
        share: fraction of the GPU's free memory that data may occupy.

    Raises:
        UsageError: the data have no length, or their samples' indices are unknown.
    """
    if isinstance(data, DataLoader):
        if by_name:
            raise UsageError(
                "exact_layers=True needs the indices of a batch's samples, which a DataLoader does "
                "not provide",
                hint="pass the data set itself to fit(), or omit exact_layers",
            )
        return LoaderSource(ResumableLoader(data, seed=seed))
    sampler = ElasticSampler(
        length_of(data),
        global_batch=global_batch,
        rank=world.rank,
        world_size=world.world_size,
        seed=seed,
        drop_last=drop_last,
    )
    if world.device.type != "cuda":
        return DatasetSource(data, sampler, workers=workers, keyed=keyed)
    rows = getattr(data, "samples_are_rows", False) or not callable(getattr(data, "batch", None))
    tensors = tensors_of(data) if rows else None
    if tensors and fits(tensors, world.device, share=share):
        return ResidentSource(tensors, sampler, world.device)
    return DatasetSource(data, sampler, workers=workers, device=world.device, keyed=keyed)


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
