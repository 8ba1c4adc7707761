"""The order of samples: the same for any number of ranks and interruptions.

It is defined by the global batch. The order of an epoch is one permutation from (seed, epoch). The
cursor counts the samples that the training loop has consumed. Batch t is the next `global_batch`
samples, split among the ranks. Each sample is therefore seen once per epoch, in the same order, for
any sequence of world sizes.
"""

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from echelon.core.frozen import frozen
from echelon.errors import UsageError


@frozen
class Share:
    """One rank's part of one global batch."""

    indices: tuple[int, ...]
    """Samples to load: the rank's own, or one stand-in if it has none."""
    size: int
    """How many of them count; 0 for a stand-in."""
    total: int
    """Number of samples in the global batch."""
    start: int
    """Position of the global batch in the epoch's order."""


def epoch_order(length: int, *, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """Return the order of an epoch; it depends only on these values."""
    if not shuffle:
        return torch.arange(length)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(length, generator=generator)


def split(count: int, rank: int, world_size: int) -> range:
    """Return a rank's positions within a global batch of `count` samples.

    The parts differ by at most one; the first ranks have the larger ones, so rank 0 always has a
    sample.
    """
    each, more = divmod(count, world_size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


class ElasticSampler(Sampler[list[int]]):
    """A batch sampler over the global batch: `DataLoader(data, batch_sampler=sampler)`.

    The loader may run ahead, so call `advance()` after each batch that the loop has consumed. If
    the last batch of an epoch has no sample for a rank, the rank gets a stand-in, so that all ranks
    take the same number of steps. Then `share().size` is 0, and the sample must not count.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        global_batch: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.length = data if isinstance(data, int) else len(data)
        if global_batch < 1:
            raise UsageError(
                f"invalid value for global_batch: {global_batch}", hint="use 1 or more"
            )
        if not 0 <= rank < world_size:
            raise UsageError(
                f"rank {rank} is not in 0 to {world_size - 1}",
                hint="use rank and world_size from echelon.init()",
            )
        if drop_last and 0 < self.length < global_batch:
            raise UsageError(
                f"{self.length} samples are fewer than one global batch of {global_batch}, and "
                "drop_last=True drops them all",
                hint="use a smaller global batch, or drop_last=False",
            )
        self.global_batch, self.rank, self.world_size = global_batch, rank, world_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch = 0
        self.cursor = 0
        """Samples of this epoch that the training loop has consumed, over all ranks."""
        self._order: tuple[int, torch.Tensor] | None = None

    unit = "samples"

    @property
    def usable(self) -> int:
        """Samples of an epoch that belong to some batch."""
        if self.drop_last:
            return self.length - self.length % self.global_batch
        return self.length

    def __len__(self) -> int:
        """Return the number of batches left in this epoch."""
        left = max(0, self.usable - self.cursor)
        return (left + self.global_batch - 1) // self.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        for share in self.shares():
            yield list(share.indices)

    def shares(self) -> Iterator[Share]:
        """Yield this rank's part of each remaining batch, from the cursor on."""
        start = self.cursor
        while start < self.usable:
            share = self._share(start)
            yield share
            start += share.total

    def _share(self, start: int) -> Share:
        order = self.order()
        total = min(self.global_batch, self.usable - start)
        places = split(total, self.rank, self.world_size)
        mine = order[start + places.start : start + places.stop].tolist()
        indices = mine or [int(order[start])]
        return Share(indices=tuple(indices), size=len(mine), total=total, start=start)

    def share(self) -> Share:
        """Return this rank's part of the batch at the cursor."""
        return self._share(self.cursor)

    def order(self) -> torch.Tensor:
        """Return the whole epoch's samples, in their order."""
        if self._order is None or self._order[0] != self.epoch:
            order = epoch_order(self.length, seed=self.seed, epoch=self.epoch, shuffle=self.shuffle)
            self._order = (self.epoch, order)
        return self._order[1]

    # --- called by the training loop ------------------------------------------------------------

    def advance(self) -> None:
        """Count the batch at the cursor as consumed."""
        self.cursor = min(self.usable, self.cursor + self.global_batch)

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; the current epoch keeps its position."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    @property
    def over(self) -> bool:
        """Whether every batch of the epoch is consumed."""
        return self.cursor >= self.usable

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "cursor": self.cursor,
            "seed": self.seed,
            "length": self.length,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another sampler, on any number of ranks.

        Raises:
            UsageError: it had other data or settings, so the order would differ.
        """
        for name in ("seed", "length", "shuffle"):
            if state[name] != getattr(self, name):
                raise UsageError(
                    f"the checkpoint was saved with {name}={state[name]}, not "
                    f"{getattr(self, name)}; the order of samples would differ",
                    hint=f"use the same data and {name}, or start without the checkpoint",
                )
        self.epoch, self.cursor = int(state["epoch"]), int(state["cursor"])


class ElasticIndexSampler(Sampler[int]):
    """A sampler of indices: `DataLoader(data, batch_size=b, sampler=sampler)`, b samples per rank.

    Its global batch is b × world_size. On another number of ranks the batches differ, but each
    sample is still seen once. If the last batch has no sample for a rank, that rank repeats one,
    because a plain loader cannot mark it as not counting.
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.batches = ElasticSampler(
            data,
            global_batch=batch_size * world_size,
            rank=rank,
            world_size=world_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )

    def __len__(self) -> int:
        return sum(len(share.indices) for share in self.batches.shares())

    def __iter__(self) -> Iterator[int]:
        for share in self.batches.shares():
            yield from share.indices

    def advance(self) -> None:
        """Count a batch as consumed."""
        self.batches.advance()

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state_dict(state)
