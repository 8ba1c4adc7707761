"""How long backward passes wait for other ranks."""

import pytest
import torch
import torch.distributed as dist

from echelon.train.pace import EVERY_S, PeerWait
from unit.train.test_trainer import Points, trainer

WAIT_S = 0.01


class Clock:
    """Advances only when told to."""

    now_s = 0.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


def make_loss(clock, *, waits_s=0.0, works_s=0.0):
    """Return a loss whose backward pass works, and waits in the end, in the way of DDP."""
    weight = torch.ones(1, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    weight.register_hook(lambda _: engine.queue_callback(lambda: clock.advance(waits_s)))
    loss = (2 * weight).sum()
    loss.grad_fn.register_prehook(lambda _: clock.advance(works_s))
    return loss


def test_the_wait_at_the_end_is_measured_and_the_work_before_it_is_not(clock):
    peers = PeerWait(clock)
    peers.backward(make_loss(clock, waits_s=WAIT_S, works_s=1.0))
    assert peers.seconds == pytest.approx(WAIT_S)


def test_a_pass_that_is_measured_stands_for_those_that_were_not(clock):
    peers = PeerWait(clock)
    peers.backward(make_loss(clock, waits_s=WAIT_S))
    for _ in range(3):
        clock.advance(EVERY_S / 4)
        peers.backward(make_loss(clock))
    assert peers.seconds == pytest.approx(WAIT_S)
    clock.advance(EVERY_S)
    peers.backward(make_loss(clock, waits_s=WAIT_S))
    assert peers.seconds == pytest.approx(WAIT_S + 4 * WAIT_S)


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_only_the_pass_that_meets_other_ranks_counts(group, monkeypatch):
    passes = []
    backward = PeerWait.backward

    def counted(peers, loss):
        passes.append(1)
        backward(peers, loss)

    monkeypatch.setattr(PeerWait, "backward", counted)
    trainer(epochs=1, accumulate=4, max_steps=3, ddp=True).fit(Points(24))
    assert len(passes) == 3 + 2  # one per step, and two in which DDP arranges its buckets
