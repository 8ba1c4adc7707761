"""Which source of batches serves given data on a given device."""

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
    """Return where a rank's portions of data come from.

    Args:
        data: a data set, which is divided over the ranks, or this rank's own loader.
        world: this rank's place and device.
        global_batch: samples of one step, over all ranks.
        seed: decides their order.
        drop_last: leave out the last batch of an epoch if it is smaller.
        workers: processes that load data.
        keyed: whether each sample is to have its key.
        by_name: whether it has to be known which samples a batch is of.
        share: of the GPU's free memory, that data may take to live there.

    Raises:
        UsageError: the data have no length, or do not say which samples they give.
    """
    if isinstance(data, DataLoader):
        if by_name:
            raise UsageError(
                "exact_layers have to know which samples a batch is of, and a DataLoader does not "
                "say",
                hint="give fit() the data set itself, or leave exact_layers out",
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
