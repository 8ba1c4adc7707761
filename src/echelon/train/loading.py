"""Where a rank's batches come from, and how far the training has got in them.

Two sources: a data set, of which the `ElasticSampler` gives each rank its part of every global
batch, on any number of ranks; or a `DataLoader` of your own, which goes on at the batch where it
was interrupted.
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


@dataclass(frozen=True, slots=True)
class Portion:
    """A rank's part of one step."""

    batch: Any
    """On the host, on the device, or Rows, which the step itself reads."""
    total: int | None
    """Samples of the step over all ranks; None where each rank's mean counts alike."""
    size: int = 1
    """This rank's samples among them; 0 for a stand-in, which must not count."""
    indices: Sequence[int] | None = None
    """Its samples' places in the data set; None where a loader of the user's does not say."""
    keys: torch.Tensor | None = None
    """One for each sample, for what draws by them; None where nobody does, and of Rows."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch that is not read yet: rows of tensors that are on the device."""

    tensors: tuple[torch.Tensor, ...]
    indices: torch.Tensor
    epoch_key: torch.Tensor

    def read(self) -> tuple[torch.Tensor, ...]:
        return read_rows(self.tensors, self.indices)

    def keys(self) -> torch.Tensor:
        """Return one key per sample, for keyed random numbers."""
        return keys_within(self.indices, self.epoch_key)


class Order(Protocol):
    """In which order an epoch is consumed, and how far the training has got in it."""

    unit: str
    """What an epoch is counted in."""

    @property
    def cursor(self) -> int:
        """What the training has consumed of the epoch, in these units."""

    @property
    def usable(self) -> int:
        """What an epoch has of them."""

    def advance(self) -> None: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Source(Protocol):
    """Gives a rank its portions of an epoch."""

    @property
    def order(self) -> Order: ...

    def portions(self) -> Iterator[Portion]:
        """Return what is left of the epoch, from where the order is."""


# --- a data set -------------------------------------------------------------------------------


class DatasetSource:
    """Portions of a data set, in the order of a sampler."""

    def __init__(
        self,
        data: Dataset[Any],
        sampler: ElasticSampler,
        *,
        workers: int = 0,
        device: torch.device = _CPU,
        keyed: bool = False,
    ) -> None:
        """Prepare.

        Args:
            data: what to take portions of.
            sampler: decides which.
            workers: processes that load data.
            device: where portions are to be.
            keyed: whether each sample is to have its key.
        """
        self._data, self.order = data, sampler
        self._workers, self._device, self._keyed = workers, device, keyed

    def portions(self) -> Iterator[Portion]:
        sampler = self.order
        fetch = Fetch(self._data, seed=sampler.seed, epoch=sampler.epoch)
        shares, asked = itertools.tee(sampler.shares())
        batches = fetch_all(fetch, (share.indices for share in asked), workers=self._workers)
        # A share travels with its batch: who takes them may be in another thread.
        found: Iterator[Any] = (
            (share, batch, self._keys(share)) for share, batch in zip(shares, batches, strict=True)
        )
        if self._device.type == "cuda":
            found = stream_to(self._device, found)
        for share, batch, keys in found:
            yield Portion(batch, share.total, share.size, share.indices, keys)

    def _keys(self, share: Share) -> torch.Tensor | None:
        if not self._keyed:
            return None
        sampler = self.order
        return sample_keys(torch.tensor(share.indices), seed=sampler.seed, epoch=sampler.epoch)


class Fetch(Dataset[Any]):
    """Whole batches of a data set: by its own `batch(indices)` or `tensors`, else one by one.

    Whatever its transforms draw is keyed: by (seed, epoch, sample), not by which worker draws it.
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
            return self._whole(indices)  # what it draws is the training's own, and saved with it
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
    """Return the tensors that a data set is made of, as a TensorDataset is; None if it is not."""
    found = getattr(data, "tensors", None)
    # A class with a `__getitem__` of its own may do more than read rows, unless it says not.
    plain = getattr(type(data), "__getitem__", None) is TensorDataset.__getitem__
    if not (plain or getattr(data, "samples_are_rows", False)) or not isinstance(found, tuple):
        return None
    whole = all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in found)
    return found if whole and {len(tensor) for tensor in found} == {length_of(data)} else None


def fetch_all(fetch: Fetch, batches: Iterable[Sequence[int]], *, workers: int) -> Iterator[Any]:
    """Fetch batch after batch, ahead of the loop if there are workers."""
    if not workers:
        return (fetch[indices] for indices in batches)
    return iter(
        DataLoader(
            fetch,
            batch_size=None,
            sampler=cast("Iterable[Any]", batches),
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),  # else it draws from the training's own
            # Children of mp.spawn would spawn theirs, and each import torch again in every epoch.
            multiprocessing_context="fork",
        )
    )


# --- a loader of one's own ----------------------------------------------------------------------


class ResumableLoader:
    """Any DataLoader, with or without workers, that goes on where the loop was.

    A batch counts as consumed when the loop has it, however far the workers are ahead: save after
    its step. What the sampler draws is a function of (seed, epoch). Each rank has its own loader;
    in an `IterableDataset` what was consumed has to be read again to be passed over.
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int = 0) -> None:
        self.cursor = 0
        """Batches of this epoch that the loop has had."""
        self.epoch = 0
        self._seed, self._given = seed, loader
        self._iterable = isinstance(loader.dataset, IterableDataset)

    unit = "batches"

    def __len__(self) -> int:
        """Return how many batches an epoch has."""
        return len(self._given)

    @cached_property
    def usable(self) -> int:
        return len(self)

    def advance(self) -> None:
        """Do nothing: a batch counts when the loop has it."""

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the one that is under way goes on where it was."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        if self.cursor and not self._iterable and self.cursor >= len(self):
            return
        with undisturbed(_CPU):
            batches = iter(self._loader())
            # A stream that shuffles does so when it is first asked: here, where it is seeded.
            asked = max(1, self.cursor) if self._iterable else 0
            first = list(itertools.islice(batches, asked))[self.cursor :]
        for batch in itertools.chain(first, batches):
            self.cursor += 1
            yield batch

    def _loader(self) -> DataLoader[Any]:
        """Return a loader like the given one, of which the first batches are passed over."""
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
        """Go on where another loader was.

        Raises:
            UsageError: its order was another.
        """
        if state.get("seed") != self._seed:
            raise UsageError(
                f"the checkpoint's order of samples has seed={state.get('seed')}, this one "
                f"{self._seed}",
                hint="use the same seed, or start anew without the checkpoint",
            )
        self.epoch, self.cursor = int(state["epoch"]), int(state["cursor"])


def _reseed(sampler: object, key: int) -> None:
    """Seed a sampler's own generator, if it has one, or that of what it draws batches from."""
    for owner in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(key)


def _passed_over(order: Iterable[Any], count: int) -> list[Any]:
    """Return an epoch's order without its beginning. Drawn now: nobody else seeds in between."""
    return list(itertools.islice(order, count, None))


class LoaderSource:
    """Portions of a loader: each rank's mean counts alike."""

    def __init__(self, loader: ResumableLoader) -> None:
        """Prepare.

        Raises:
            UsageError: the loader has no length.
        """
        self.order = loader
        try:
            len(loader)
        except TypeError as error:
            raise UsageError(
                "the loader has no length, and an epoch needs one",
                hint="give its IterableDataset a __len__",
            ) from error

    def portions(self) -> Iterator[Portion]:
        for batch in self.order:
            yield Portion(batch, None)


def length_of(data: object) -> int:
    """Return how many samples a data set has.

    Raises:
        UsageError: it cannot say.
    """
    if not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length, so its samples cannot be divided over ranks",
            hint="give it __len__ and __getitem__, or pass a DataLoader of your own",
        )
    return len(data)
