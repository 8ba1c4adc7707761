"""Evaluate a model on all data, divided among the ranks; each sample counts once."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from echelon.errors import UsageError
from echelon.train.agreement import least_over_ranks
from echelon.train.batches import to_device
from echelon.train.learner import Learner
from echelon.train.loading import Fetch, fetch_all, length_of
from echelon.train.metrics import Metrics, Step, Sums, Tally, top_k
from echelon.train.process_group import Group


@torch.no_grad()
def evaluate(
    learner: Learner,
    data: Dataset[Any] | DataLoader[Any],
    measure: Step,
    *,
    world: Group,
    batch: int,
    workers: int,
    passed: Callable[[], None],
) -> dict[str, float]:
    """Return the means of `measure` over all data and all ranks.

    `passed` is called after each batch of a data set; there, all ranks may stop together. It is not
    called with loaders, because ranks may have different numbers of batches.
    """
    if learner.sharded and isinstance(data, DataLoader):
        _check_equal_lengths(data)
    learner.share_buffers()
    modes = [(module, module.training) for module in learner.module.modules()]
    learner.module.eval()
    tally, transform = Tally(world.device), learner.transform
    parts = rank_parts(
        data, rank=world.rank, world_size=world.world_size, batch=batch, workers=workers
    )
    for part, counts in parts:
        given = to_device(part, world.device)
        with learner.autocast():
            sums = measure(learner.module, transform(given, None) if transform else given)
        tally.add(sums if counts else dict.fromkeys(sums, 0.0))
        if not isinstance(data, DataLoader):
            passed()
    for module, training in modes:  # restore each mode: some modules may be frozen
        module.training = training
    return tally.means()


def _check_equal_lengths(loader: DataLoader[Any]) -> None:
    """Check that all ranks have as many batches: each one needs all ranks of a sharded model.

    Raises:
        UsageError: they have not, or it is unknown.
    """
    try:
        count = len(loader)
    except TypeError:  # of an IterableDataset
        count = -1
    least, most = least_over_ranks(count), -least_over_ranks(-count)
    if least == most != -1:
        return
    numbers = "of unknown length" if least == -1 else f"of {least} to {most} batches"
    raise UsageError(
        f"validation loaders {numbers}: a sharded model needs as many batches on every rank",
        hint="pass the data set itself to fit(), which is divided evenly",
    )


def rank_parts(
    data: Dataset[Any] | DataLoader[Any], *, rank: int, world_size: int, batch: int, workers: int
) -> Iterator[tuple[Any, bool]]:
    """Yield a rank's batches, and whether each counts.

    From a data set, each rank gets the same number, so that all ranks can stop in the middle; if no
    sample is left for a rank, sample 0 stands in. A loader's batches are used as they are.
    """
    if isinstance(data, DataLoader):
        yield from ((given, True) for given in data)
        return
    length, stride = length_of(data), world_size * batch
    mine = [
        range(start + rank, min(start + stride, length), world_size)
        for start in range(0, length, stride)
    ]
    batches = fetch_all(Fetch(data), [part or range(1) for part in mine], workers=workers)
    yield from zip(batches, map(bool, mine), strict=True)


def measure_of_loss(loss: Callable[..., torch.Tensor], metrics: Metrics | None) -> Step:
    """Return the step that measures batches of (inputs, targets): loss, accuracy and metrics."""
    accuracy = top_k(1)

    def measure(model: nn.Module, batch: Any) -> Sums:
        inputs, targets = batch
        outputs = model(inputs)
        found: dict[str, torch.Tensor | float] = {"count": len(targets)}
        found["loss"] = loss(outputs, targets) * len(targets)
        if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
            found |= accuracy(outputs, targets)
        return {**found, **metrics(outputs, targets)} if metrics else found

    return measure
