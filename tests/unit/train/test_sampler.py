import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echelon.errors import UsageError
from echelon.train.sampler import ElasticIndexSampler, ElasticSampler, epoch_order, split

lengths = st.integers(0, 60)
batches = st.integers(1, 17)
worlds = st.integers(1, 6)


def ranks(length, world_size, state=None, **options):
    """All ranks' samplers, as after a restart from a state."""
    made = [
        ElasticSampler(length, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    for sampler in made:
        if state is not None:
            sampler.load_state_dict(state)
    return made


def take(samplers, steps):
    """Run some steps on all ranks; return what counted, in the order of the epoch."""
    consumed = []
    for shares in itertools.islice(
        zip(*(sampler.shares() for sampler in samplers), strict=True), steps
    ):
        assert len({share.total for share in shares}) == 1
        assert all(len(share.indices) >= 1 for share in shares)
        here = [index for share in shares for index in share.indices[: share.size]]
        assert len(here) == shares[0].total
        consumed += here
    for sampler in samplers:
        for _ in range(steps):
            sampler.advance()
    return consumed


@given(
    length=lengths,
    global_batch=batches,
    shuffle=st.booleans(),
    interruptions=st.lists(st.tuples(worlds, st.integers(0, 8)), max_size=6),
    last=worlds,
)
def test_each_sample_once_per_epoch_in_one_order_whatever_happens(
    length, global_batch, shuffle, interruptions, last
):
    options = {"global_batch": global_batch, "shuffle": shuffle, "seed": 7}
    consumed, state = [], None
    for world_size, steps in interruptions:
        samplers = ranks(length, world_size, state, **options)
        consumed += take(samplers, min(steps, len(samplers[0])))
        state = samplers[0].state_dict()
    samplers = ranks(length, last, state, **options)
    consumed += take(samplers, len(samplers[0]))
    assert all(sampler.over for sampler in samplers)
    assert consumed == epoch_order(length, seed=7, epoch=0, shuffle=shuffle).tolist()
    assert sorted(consumed) == list(range(length))


@given(length=lengths, global_batch=batches, world_size=worlds)
def test_drop_last_leaves_only_whole_batches(length, global_batch, world_size):
    if 0 < length < global_batch:
        with pytest.raises(UsageError, match="fewer than one global batch"):
            ElasticSampler(length, global_batch=global_batch, drop_last=True)
        return
    samplers = ranks(length, world_size, global_batch=global_batch, drop_last=True)
    consumed = take(samplers, len(samplers[0]))
    assert len(consumed) == length - length % global_batch
    assert len(set(consumed)) == len(consumed)


@given(count=st.integers(0, 50), world_size=worlds)
def test_a_batch_is_split_without_gap_or_overlap(count, world_size):
    parts = [split(count, rank, world_size) for rank in range(world_size)]
    assert [place for part in parts for place in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(length=st.integers(1, 60), batch=st.integers(1, 5), world_size=worlds)
def test_the_plain_form_takes_as_many_steps_on_every_rank(length, batch, world_size):
    samplers = [
        ElasticIndexSampler(length, batch_size=batch, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    loaders = [
        list(torch.utils.data.DataLoader(range(length), batch_size=batch, sampler=sampler))
        for sampler in samplers
    ]
    assert len({len(loader) for loader in loaders}) == 1
    seen = torch.cat([each for loader in loaders for each in loader]).tolist()
    assert set(seen) == set(range(length))
    assert len(seen) - length < world_size  # stand-ins of the last batch, at most one each


def test_epochs_differ_and_repeat():
    sampler = ElasticSampler(100, global_batch=10, seed=3)
    first = [index for batch in sampler for index in batch]
    sampler.set_epoch(1)
    assert [index for batch in sampler for index in batch] != first
    sampler.set_epoch(0)
    assert [index for batch in sampler for index in batch] == first


def test_what_a_loader_has_fetched_ahead_does_not_count():
    sampler = ElasticSampler(100, global_batch=10)
    loader = iter(torch.utils.data.DataLoader(range(100), batch_sampler=sampler))
    for _ in range(3):
        next(loader)
        sampler.advance()
    assert sampler.state_dict()["cursor"] == 30
    assert len(sampler) == 7


@pytest.mark.parametrize(("name", "value"), [("seed", 1), ("length", 9), ("shuffle", False)])
def test_a_state_over_other_data_is_refused(name, value):
    state = {**ElasticSampler(10, global_batch=2).state_dict(), name: value}
    with pytest.raises(UsageError, match=name):
        ElasticSampler(10, global_batch=2).load_state_dict(state)


@pytest.mark.parametrize(
    "values", [{"global_batch": 0}, {"global_batch": 2, "rank": 2, "world_size": 2}]
)
def test_what_cannot_be_is_refused(values):
    with pytest.raises(UsageError):
        ElasticSampler(10, **values)
