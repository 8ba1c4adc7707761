"""Choose the source of batches for given data and a given device."""

from typing import Any

from torch.utils.data import DataLoader, Dataset

from echelon.errors import UsageError
from echelon.train.loading import (
    DatasetSource,
    LoaderSource,
    ResumableLoader,
    Source,
    length_of,
    tensors_of,
)
from echelon.train.process_group import Group
from echelon.train.resident import SHARE, ResidentSource, fits
from echelon.train.sampler import ElasticSampler


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
