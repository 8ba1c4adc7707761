import weakref

import pytest
import torch

from echelon.train.metrics import Tally, top_k

CPU = torch.device("cpu")


def test_means_are_over_samples_not_over_batches():
    tally = Tally(CPU)
    tally.add({"loss": torch.tensor(10.0), "count": 1})
    tally.add({"loss": torch.tensor(2.0)}, unit=3)  # a mean of three
    tally.add({"count": 3, "right": 2})
    assert tally.means() == {"loss": 4.0, "right": 0.5}
    assert tally.means() == {}  # it has begun anew


def test_what_must_not_count_does_not():
    tally = Tally(CPU)
    tally.add({"loss": torch.tensor(4.0), "count": 2})
    tally.add({"loss": 0.0, "count": 0.0})
    assert tally.means() == {"loss": 2.0}


def test_many_small_losses_do_not_drown():
    tally = Tally(CPU)
    for _ in range(1000):
        tally.add({"loss": torch.tensor(1e8), "count": 1})
        tally.add({"loss": torch.tensor(1.0), "count": 1})
    assert tally.means()["loss"] == pytest.approx((1e8 + 1) / 2, rel=1e-12)


def test_a_loss_is_not_kept_with_its_graph():
    tally = Tally(CPU)
    loss = (torch.ones(2, requires_grad=True) * 2).sum()
    kept = weakref.ref(loss)
    tally.add({"loss": loss, "count": 2})
    del loss
    assert kept() is None


def test_targets_among_the_first_k():
    outputs = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    found = top_k(1, 2)(outputs, torch.tensor([1, 2, 0]))
    assert {name: int(value) for name, value in found.items()} == {"accuracy": 1, "top2": 2}
    found = top_k(1, 5)(outputs, torch.tensor([1, 2, 0]))  # of three classes
    assert int(found["top5"]) == 3
