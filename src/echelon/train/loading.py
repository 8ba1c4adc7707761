"""Sources of a rank's batches, with the position of the training in them.

There are two sources. From a data set, the `ElasticSampler` gives each rank its part of every
global batch, on any number of ranks. A user's own `DataLoader` resumes at the batch where it
stopped.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
)

from echelon.errors import UsageError
from echelon.train.batches import read_rows
from echelon.train.randomness import (
    epoch_key,
    keys_within,
    sample_keys,
    seed_generators,
    undisturbed,
)
from echelon.train.sampler import ElasticSampler, Share
from echelon.train.streaming import stream_to

_CPU = torch.device("cpu")


@dataclass(slots=True)  # frozen, it would take five times as long to create
class Portion:
    """A rank's part of one step."""

    batch: Any
    """On the host, on the device, or Rows, which the step itself reads."""
    total: int | None
    """Samples of the step over all ranks; None if each rank's mean has the same weight."""
    size: int = 1
    """Number of this rank's samples; 0 for a stand-in, which must not count."""
    indices: Sequence[int] | None = None
    """Indices of its samples in the data set; None with a user's own loader."""
    keys: torch.Tensor | None = None
    """One key per sample, for keyed random numbers; None if they are not used, and with Rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch that is not read yet: row indices of tensors on the device."""

    tensors: tuple[torch.Tensor, ...]
    indices: torch.Tensor
    epoch_key: torch.Tensor

    def read(self) -> tuple[torch.Tensor, ...]:
        return read_rows(self.tensors, self.indices)

    def keys(self) -> torch.Tensor:
        """Return one key per sample, for keyed random numbers."""
        return keys_within(self.indices, self.epoch_key)


class Order(Protocol):
    """The order in which an epoch is consumed, and the position of the training in it."""

    unit: str
    """The unit of `cursor` and `usable`: samples or batches."""

    @property
    def cursor(self) -> int:
        """How much of the epoch the training has consumed."""

    @property
    def usable(self) -> int:
        """The length of an epoch."""

    def advance(self) -> None: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Source(Protocol):
    """Yields a rank's portions of an epoch."""

    @property
    def order(self) -> Order: ...

    def portions(self) -> Iterator[Portion]:
        """Yield the remaining portions of the epoch, from the order's cursor on."""


# --- a data set -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """Portions of a data set, in the order of a sampler."""

    data: Dataset[Any]
    order: ElasticSampler
    workers: int = 0
    """Number of processes that load data."""
    device: torch.device = _CPU
    """The device to move portions to."""
    keyed: bool = False
    """Whether to add a key per sample."""

    def portions(self) -> Iterator[Portion]:
        sampler = self.order
        fetch = Fetch(self.data, seed=sampler.seed, epoch=sampler.epoch)
        shares, asked = itertools.tee(sampler.shares())
        batches = fetch_all(fetch, (share.indices for share in asked), workers=self.workers)
        # Each share is kept with its batch, because they may be consumed in another thread.
        found: Iterator[Any] = (
            (share, batch, self._keys(share)) for share, batch in zip(shares, batches, strict=True)
        )
        if self.device.type == "cuda":
            found = stream_to(self.device, found)
        for share, batch, keys in found:
            yield Portion(batch, share.total, share.size, share.indices, keys)

    def _keys(self, share: Share) -> torch.Tensor | None:
        if not self.keyed:
            return None
        sampler = self.order
        return sample_keys(torch.tensor(share.indices), seed=sampler.seed, epoch=sampler.epoch)


class Fetch(Dataset[Any]):
    """Whole batches of a data set: by its `batch(indices)` or `tensors`, else sample by sample.

    Random numbers of its transforms are keyed by (seed, epoch, sample), so they do not depend on
    the worker.
    """

    def __init__(self, data: Dataset[Any], *, seed: int = 0, epoch: int = 0) -> None:
        self._data, self._seed, self._epoch = data, seed, epoch
        whole = getattr(data, "batch", None)
        self._whole: Callable[[Sequence[int]], Any] | None = whole if callable(whole) else None
        if self._whole is None and tensors_of(data):
            self._whole = self._read_rows

    def __getitem__(self, indices: Sequence[int]) -> Any:
        alone = torch.utils.data.get_worker_info() is None
        if alone and self._whole is not None:
            return self._whole(indices)  # draws from the training's generators, which are saved
        if alone:
            with undisturbed(_CPU):
                return self._fetch(indices)
        return self._fetch(indices)

    def _fetch(self, indices: Sequence[int]) -> Any:
        keys = sample_keys(torch.tensor(indices), seed=self._seed, epoch=self._epoch).tolist()
        if self._whole is not None:
            seed_generators(keys[0] % 2**63)
            return self._whole(indices)
        return default_collate([self._one(i, key) for i, key in zip(indices, keys, strict=True)])

    def _read_rows(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        tensors = tensors_of(self._data)
        assert tensors is not None
        return read_rows(tensors, torch.tensor(indices))

    def _one(self, index: int, key: int) -> Any:
        seed_generators(key % 2**63)
        return self._data[index]


def tensors_of(data: Dataset[Any]) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a data set that consists of them, like a TensorDataset; else None."""
    found = getattr(data, "tensors", None)
    # A class with its own `__getitem__` may do more than read rows, unless it declares otherwise.
    plain = getattr(type(data), "__getitem__", None) is TensorDataset.__getitem__
    if not (plain or getattr(data, "samples_are_rows", False)) or not isinstance(found, tuple):
        return None
    whole = all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in found)
    return found if whole and {len(tensor) for tensor in found} == {length_of(data)} else None


def fetch_all(fetch: Fetch, batches: Iterable[Sequence[int]], *, workers: int) -> Iterator[Any]:
    """Fetch batches in order; with workers, ahead of the loop."""
    if not workers:
        return (fetch[indices] for indices in batches)
    return iter(
        DataLoader(
            fetch,
            batch_size=None,
            sampler=cast("Iterable[Any]", batches),
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),  # default: would draw from the global one
            # In children of mp.spawn the default is spawn, which reimports torch in every epoch.
            multiprocessing_context="fork",
        )
    )


# --- a user's own loader ------------------------------------------------------------------------


class ResumableLoader:
    """Wraps any DataLoader, with or without workers, so that it resumes where the loop stopped.

    A batch counts as consumed when the loop receives it, however far ahead the workers are, so save
    after the batch's step. The sampler's random numbers are a function of (seed, epoch). Each rank
    has its own loader. An `IterableDataset` has to be read again up to the position where it
    stopped.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int = 0) -> None:
        self.cursor = 0
        """Batches of this epoch that the loop has received."""
        self.epoch = 0
        self._seed, self._given = seed, loader
        self._iterable = isinstance(loader.dataset, IterableDataset)

    unit = "batches"

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._given)

    @cached_property
    def usable(self) -> int:
        return len(self)

    def advance(self) -> None:
        """Do nothing: a batch counts as soon as the loop receives it."""

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; the current epoch keeps its position."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        if self.cursor and not self._iterable and self.cursor >= len(self):
            return
        with undisturbed(_CPU):
            batches = iter(self._loader())
            # A shuffling stream shuffles on first access, so access it here, where it is seeded.
            asked = max(1, self.cursor) if self._iterable else 0
            first = list(itertools.islice(batches, asked))[self.cursor :]
        for batch in itertools.chain(first, batches):
            self.cursor += 1
            yield batch

    def _loader(self) -> DataLoader[Any]:
        """Return a loader like the given one, without the batches already consumed."""
        given, key = self._given, epoch_key(self._seed, self.epoch) % 2**63
        if hasattr(given.sampler, "set_epoch"):
            given.sampler.set_epoch(self.epoch)
        seed_generators(key)
        choice: dict[str, Any] = {}
        if self._iterable:
            choice = {"batch_size": given.batch_size, "drop_last": given.drop_last}
        elif given.batch_sampler is not None:
            _reseed(given.batch_sampler, key)
            choice = {"batch_sampler": _passed_over(given.batch_sampler, self.cursor)}
        else:
            _reseed(given.sampler, key)
            choice = {"batch_size": None, "sampler": _passed_over(given.sampler, self.cursor)}
        return DataLoader(
            given.dataset,
            **choice,
            num_workers=given.num_workers,
            collate_fn=given.collate_fn,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            prefetch_factor=given.prefetch_factor,
            generator=torch.Generator().manual_seed(key),
        )

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "cursor": self.cursor, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another loader.

        Raises:
            UsageError: its order of samples was different.
        """
        if state.get("seed") != self._seed:
            raise UsageError(
                f"the checkpoint was saved with seed={state.get('seed')}, not {self._seed}; the "
                "order of samples would differ",
                hint="use the same seed, or start without the checkpoint",
            )
        self.epoch, self.cursor = int(state["epoch"]), int(state["cursor"])


def _reseed(sampler: object, key: int) -> None:
    """Seed the generator of a sampler, and of the sampler that it draws from, if there is one."""
    for owner in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(key)


def _passed_over(order: Iterable[Any], count: int) -> list[Any]:
    """Return an epoch's order without its first entries, drawn while the seed is in effect."""
    return list(itertools.islice(order, count, None))


class LoaderSource:
    """Portions of a loader; each rank's mean has the same weight."""

    def __init__(self, loader: ResumableLoader) -> None:
        """Create the source.

        Raises:
            UsageError: the loader has no length.
        """
        self.order = loader
        try:
            len(loader)
        except TypeError as error:
            raise UsageError(
                "the loader has no length, which is needed for the length of an epoch",
                hint="add __len__ to its IterableDataset",
            ) from error

    def portions(self) -> Iterator[Portion]:
        for batch in self.order:
            yield Portion(batch, None)


def length_of(data: object) -> int:
    """Return the number of samples in a data set.

    Raises:
        UsageError: it has no length.
    """
    if not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length, so its samples cannot be divided among ranks",
            hint="add __len__ and __getitem__, or pass your own DataLoader",
        )
    return len(data)
