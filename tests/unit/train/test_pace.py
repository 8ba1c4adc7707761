"""How long backward passes wait for other ranks."""

import pytest
import torch
import torch.distributed as dist

from echelon.train.pace import EVERY_S, PeerWait, StreamWait
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


def take(peers, loss):
    peers.begin_step()
    peers.backward(loss)


def test_the_wait_at_the_end_is_measured_and_the_work_before_it_is_not(clock):
    peers = PeerWait(clock)
    take(peers, make_loss(clock, waits_s=WAIT_S, works_s=1.0))
    assert peers.seconds == pytest.approx(WAIT_S)


def test_a_pass_that_is_measured_stands_for_those_that_were_not(clock):
    peers = PeerWait(clock)
    take(peers, make_loss(clock, waits_s=WAIT_S))
    for _ in range(3):
        clock.advance(EVERY_S / 4)
        take(peers, make_loss(clock))
    assert peers.seconds == pytest.approx(WAIT_S)
    clock.advance(EVERY_S)
    take(peers, make_loss(clock, waits_s=WAIT_S))
    assert peers.seconds == pytest.approx(WAIT_S + 4 * WAIT_S)


class FakeEvent:
    """An event of a FakeGpu."""

    def __init__(self, gpu):
        self.gpu, self.at_s = gpu, None

    def record(self):
        self.at_s = self.gpu.clock()

    def query(self):
        return not self.gpu.is_behind

    def elapsed_time(self, other):
        return 1000 * (other.at_s - self.at_s)


class FakeGpu:
    def __init__(self, clock):
        self.clock = clock
        self.is_behind = self.captures = False

    def replay(self, peers, wait_s):
        """Do what a replay does with the events of a captured step."""
        peers._ready.record()
        self.clock.advance(wait_s)
        peers._done.record()


@pytest.fixture
def gpu(clock, monkeypatch):
    made = FakeGpu(clock)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(made))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.captures)
    return made


def test_on_a_gpu_a_step_is_read_as_soon_as_the_gpu_has_passed_it(clock, gpu):
    peers = StreamWait(clock)
    take(peers, make_loss(clock, waits_s=WAIT_S, works_s=1.0))
    gpu.is_behind = True
    for _ in range(3):  # the events in use are not recorded again
        take(peers, make_loss(clock, waits_s=9.0))
    assert peers.seconds == 0.0
    gpu.is_behind = False
    peers.begin_step()
    assert peers.seconds == pytest.approx(4 * WAIT_S)
    take(peers, make_loss(clock, waits_s=9.0))  # not due
    clock.advance(EVERY_S)
    peers.begin_step()
    assert peers.seconds == pytest.approx(4 * WAIT_S)


def test_on_a_gpu_any_step_may_be_measured(clock, gpu):
    """Not only the first one after ranks have met, in which nobody waits."""
    peers = StreamWait(clock)
    for step in range(1000):
        if step % 10 == 0:  # a line of the log, before which the host runs ahead
            clock.advance(1.0)
            gpu.is_behind = False
        take(peers, make_loss(clock, waits_s=WAIT_S if step % 10 else 0.0))
        gpu.is_behind = True
    assert peers.seconds == pytest.approx(900 * WAIT_S, rel=0.2)


def test_replays_of_a_captured_step_are_measured(clock, gpu):
    peers = StreamWait(clock)
    gpu.captures = True
    take(peers, make_loss(clock))
    for _ in range(3):
        gpu.replay(peers, WAIT_S)
        clock.advance(EVERY_S)
        peers.begin_step()
    assert peers.seconds == pytest.approx(3 * WAIT_S)
    peers._ready.record()  # a replay that has begun and not ended
    clock.advance(EVERY_S)
    peers.begin_step()
    assert peers.seconds == pytest.approx(3 * WAIT_S)


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
