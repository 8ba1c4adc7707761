import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from echelon.errors import UsageError
from echelon.train.loading import (
    DatasetSource,
    LoaderSource,
    ResumableLoader,
    length_of,
)
from echelon.train.sampler import ElasticSampler


class Noisy(Dataset):
    """Draws from every generator that people's transforms draw from."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        drawn = [torch.rand(()).item(), random.random(), np.random.rand()]  # noqa: NPY002, S311
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Whole(Noisy):
    def __init__(self):
        self.asked = []

    def batch(self, indices):
        self.asked.append(list(indices))
        return torch.tensor(indices)

    def __getitem__(self, index):
        raise AssertionError("it has `batch`")


class Stream(IterableDataset):
    """One that shuffles by itself."""

    def __iter__(self):
        return iter(torch.randperm(10).tolist())

    def __len__(self):
        return 10


def source(data, *, workers=0, cursor=0, rank=0, ranks=1, batch=4):
    sampler = ElasticSampler(data, global_batch=batch, rank=rank, world_size=ranks, seed=3)
    sampler.cursor = cursor
    return DatasetSource(data, sampler, workers=workers)


def rows(portions):
    return torch.cat([portion.batch for portion in portions])


@pytest.mark.parametrize("workers", [1, 2])
def test_what_transforms_draw_does_not_depend_on_workers_ranks_or_interruptions(workers):
    alone = rows(source(Noisy()).portions())
    assert torch.equal(rows(source(Noisy(), workers=workers).portions()), alone)
    rest = rows(source(Noisy(), workers=workers, cursor=8).portions())
    assert torch.equal(rest, alone[8:])
    parts = [rows(source(Noisy(), rank=rank, ranks=2).portions()) for rank in range(2)]
    both = torch.cat(parts)
    assert torch.equal(both[both[:, 0].argsort()], alone[alone[:, 0].argsort()])


def test_the_trainings_own_random_numbers_are_left_alone():
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = (torch.rand(()), random.random(), np.random.rand())  # noqa: NPY002, S311
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    list(source(Noisy()).portions())
    assert (torch.rand(()), random.random(), np.random.rand()) == expected  # noqa: NPY002, S311


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_gives_whole_batches_is_asked_for_them(workers):
    data = Whole()
    found = rows(source(data, workers=workers).portions()).tolist()
    assert sorted(found) == list(range(23))
    if not workers:
        assert [len(asked) for asked in data.asked] == [4, 4, 4, 4, 4, 3]


def test_portions_say_what_they_count():
    found = list(source(Noisy(), rank=1, ranks=2, batch=22).portions())
    assert [(p.size, p.total) for p in found] == [(11, 22), (0, 1)]
    assert len(found[1].indices) == 1  # a stand-in


# --- loaders of one's own -----------------------------------------------------------------------


def loaders():
    data = TensorDataset(torch.arange(23))
    draw = torch.Generator()
    yield "shuffled", lambda: DataLoader(data, batch_size=4, shuffle=True)
    yield "in order", lambda: DataLoader(data, batch_size=4, drop_last=True)
    yield "own generator", lambda: DataLoader(data, batch_size=4, shuffle=True, generator=draw)
    yield "workers", lambda: DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
    yield "no batches", lambda: DataLoader(data, batch_size=None, sampler=RandomSampler(data))
    batches = BatchSampler(SequentialSampler(data), 5, drop_last=False)
    yield "batch sampler", lambda: DataLoader(data, batch_sampler=batches)
    ours = DistributedSampler(data, num_replicas=2, rank=1, seed=5)
    yield "distributed", lambda: DataLoader(data, batch_size=3, sampler=ours)
    yield "stream", lambda: DataLoader(Stream(), batch_size=4)


LOADERS = dict(loaders())


def values(batches):
    return [b.tolist() if isinstance(b, torch.Tensor) else b[0].tolist() for b in batches]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_any_loader_goes_on_where_the_loop_was(kind, epoch):
    whole = ResumableLoader(LOADERS[kind](), seed=7)
    whole.set_epoch(epoch)
    expected = values(whole)
    assert len(expected) == len(whole)
    broken = ResumableLoader(LOADERS[kind](), seed=7)
    broken.set_epoch(epoch)
    seen, stop = [], len(expected) // 2
    for number, batch in enumerate(broken, start=1):
        seen += values([batch])
        if number == stop:
            break
    torch.rand(5)  # something else draws in between
    resumed = ResumableLoader(LOADERS[kind](), seed=7)
    resumed.load_state_dict(broken.state_dict())
    assert seen + values(resumed) == expected
    assert values(resumed) == []  # the epoch is over
    resumed.set_epoch(epoch + 1)
    assert len(values(resumed)) == len(expected)


def test_each_epoch_has_its_own_order():
    loader = ResumableLoader(LOADERS["shuffled"](), seed=7)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append(values(loader))
    assert orders[0] != orders[1] != orders[2]
    assert all(
        sorted(value for batch in order for value in batch) == list(range(23)) for order in orders
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), max_size=6))
def test_any_sequence_of_interruptions_sees_each_batch_once(stops):
    expected = values(ResumableLoader(LOADERS["shuffled"](), seed=1))
    state, seen = None, []
    for stop in [*stops, 100]:
        loader = ResumableLoader(LOADERS["shuffled"](), seed=1)
        if state:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader, start=1):
            seen += values([batch])
            if number == stop:
                break
        state = loader.state_dict()
    assert seen == expected


def test_another_order_is_not_gone_on_with():
    state = ResumableLoader(LOADERS["shuffled"](), seed=1).state_dict()
    with pytest.raises(UsageError, match="seed=1, not 2"):
        ResumableLoader(LOADERS["shuffled"](), seed=2).load_state_dict(state)


def test_a_source_counts_the_batches_that_the_loop_has_had():
    made = LoaderSource(ResumableLoader(LOADERS["workers"]()))
    assert (made.order.usable, made.order.cursor) == (6, 0)
    portions = made.portions()
    next(portions)
    assert made.order.cursor == 1
    other = LoaderSource(ResumableLoader(LOADERS["workers"]()))
    other.order.load_state_dict(made.order.state_dict())
    assert other.order.cursor == 1
    other.order.set_epoch(1)
    assert other.order.cursor == 0


def test_what_has_no_length_is_told():
    with pytest.raises(UsageError, match="no length"):
        length_of(object())

    class Endless(IterableDataset):
        def __iter__(self):
            yield 1

    with pytest.raises(UsageError, match="no length"):
        LoaderSource(ResumableLoader(DataLoader(Endless())))
