"""How long backward passes wait for other ranks."""

import time

import torch

from echelon.train.pace import EVERY_S, PeerWait
from unit.train.test_trainer import Points, trainer

WAIT_S = 0.05


def make_loss(*, waits):
    """Return a loss whose backward pass waits in the end, in the way of DDP."""
    weight = torch.ones(1, requires_grad=True)
    if waits:
        engine = torch.autograd.Variable._execution_engine
        weight.register_hook(lambda _: engine.queue_callback(lambda: time.sleep(WAIT_S)))
    return (2 * weight).sum()


def test_the_wait_at_the_end_is_measured_and_the_work_before_it_is_not():
    peers = PeerWait()
    loss = make_loss(waits=True)
    loss.grad_fn.register_prehook(lambda _: time.sleep(4 * WAIT_S))
    peers.backward(loss)
    assert WAIT_S <= peers.seconds < 4 * WAIT_S


def test_a_pass_that_is_measured_stands_for_those_that_were_not():
    peers = PeerWait()
    peers.backward(make_loss(waits=True))
    once = peers.seconds
    peers._measured_s = time.perf_counter() + 60  # as if it were just now
    for _ in range(3):
        peers.backward(make_loss(waits=False))
    assert peers.seconds == once
    peers._measured_s = time.perf_counter() - EVERY_S
    peers.backward(make_loss(waits=True))
    assert peers.seconds >= once + 4 * WAIT_S


def test_only_the_pass_that_meets_other_ranks_counts():
    class Counting(PeerWait):
        passes = 0

        def backward(self, loss):
            self.passes += 1
            super().backward(loss)

    made = trainer(epochs=1, accumulate=4, max_steps=3)
    made._learner._eager.peer_wait = peers = Counting()
    made.fit(Points(24))
    assert peers.passes == 3
