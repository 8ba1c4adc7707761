import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from echelon.train.randomness import (
    mix,
    random_states,
    restore_random_states,
    sample_keys,
    undisturbed,
    uniform,
)
from echelon.train.state import flatten, unflatten

CPU = torch.device("cpu")


def mix_by_hand(value):
    """splitmix64's finisher, in whole numbers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
def test_the_hash_is_the_known_one(value):
    found = int(mix(torch.tensor(value))) % 2**64
    assert found == mix_by_hand(value % 2**64)


def test_keys_are_a_samples_own():
    keys = sample_keys(torch.arange(10_000), seed=1, epoch=2)
    assert len(keys.unique()) == 10_000
    some = sample_keys(torch.tensor([7, 3, 9_999]), seed=1, epoch=2)
    assert torch.equal(some, keys[[7, 3, 9_999]])
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}):
        assert not (sample_keys(torch.arange(10_000), **other) == keys).any()


def test_keyed_numbers_are_uniform_and_each_draw_is_new():
    keys = sample_keys(torch.arange(100_000), seed=0, epoch=0)
    first, second = uniform(keys, 0), uniform(keys, 1)
    for draw in (first, second):
        assert draw.min() >= 0
        assert draw.max() < 1
        histogram = torch.histc(draw, bins=10, min=0, max=1) / len(keys)
        assert (histogram - 0.1).abs().max() < 0.005
    together = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert together.abs() < 0.01
    assert torch.corrcoef(torch.stack([first[1:], first[:-1]]))[0, 1].abs() < 0.01


def draw():
    return torch.rand(3).tolist(), random.random(), np.random.rand()  # noqa: NPY002, S311


def test_the_states_of_all_generators_come_back_through_a_checkpoint():
    draw()
    np.random.randn()  # noqa: NPY002  leaves half of a pair behind
    skeleton, tensors = flatten(random_states(CPU))
    expected = draw(), np.random.randn()  # noqa: NPY002
    restore_random_states(unflatten(skeleton, tensors), CPU)
    assert (draw(), np.random.randn()) == expected  # noqa: NPY002


def test_what_is_drawn_inside_changes_nothing_outside():
    states = random_states(CPU)
    with undisturbed(CPU):
        inside = draw()
    assert draw() == inside
    restore_random_states(states, CPU)
    assert draw() == inside
