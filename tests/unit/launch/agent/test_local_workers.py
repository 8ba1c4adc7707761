"""Orders that reach an agent while no zygote is ready, and what becomes of them when it dies."""

import asyncio
import os
import signal

import pytest

from echelon.core import addresses
from echelon.launch.agent.local_workers import LocalWorkers
from echelon.launch.protocol.messages import (
    UNSTARTED,
    End,
    Ended,
    ForkRank,
    Note,
    Open,
    Opened,
    Place,
    Propose,
    Start,
    ZygoteLost,
    ZygoteReady,
)
from echelon.run.directory import RunDir

OPEN = Open(generation=0, addresses=[addresses.LOOPBACK])
START = Start(
    generation=0,
    node_rank=1,
    nodes=2,
    first_rank=4,
    count=2,
    world_size=6,
    address=addresses.LOOPBACK,
    port=1,
    served=True,
)
READY = ZygoteReady(serves_store=True, cold_reason="")


class FakeZygote:
    """Counts its starts, and keeps its orders."""

    def __init__(self):
        self.pid, self.starts, self.orders = os.getpid(), 0, []

    async def start(self, _listener):
        self.starts += 1

    def send(self, order, _listener=None):
        self.orders.append(order)


class FakeFiles:
    """Does at once what storage would be asked for."""

    async def insist(self, task):
        return task()

    def set_clock(self, _now_s):
        pass

    def follow(self, _log):
        pass

    finish = follow

    async def read_end(self, _files):
        return {}, ""


class FakeGuard:
    def forget(self, _pid):
        pass


class Node:
    """A node's workers; what they say, and what their zygote is told."""

    def __init__(self, folder):
        self.said, self.tasks, self.zygote = [], [], FakeZygote()
        scratch = folder / "scratch"
        scratch.mkdir()
        run = RunDir.create(folder, "a")
        run.claim_attempt()
        self.workers = LocalWorkers(
            run=run,
            attempt=1,
            environ={},
            scratch=scratch,
            zygote=self.zygote,
            guard=FakeGuard(),
            files=FakeFiles(),
            say=self.said.append,
            spawn=self._spawn,
        )

    def _spawn(self, work):
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def settle(self):
        while waiting := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(waiting)

    def heard(self, kind):
        return [message for message in self.said if isinstance(message, kind)]

    @property
    def forks(self):
        return [order.rank for order in self.zygote.orders if isinstance(order, ForkRank)]


@pytest.fixture
def node(tmp_path):
    one = Node(tmp_path)
    yield one
    one.workers.close()


def lasting(test):
    """Run a test as a coroutine."""
    return lambda node: asyncio.run(test(node))


@lasting
async def test_an_order_to_open_outlives_the_zygotes_that_die_before_they_are_ready(node):
    node.workers.open(OPEN)
    for _ in range(2):
        node.workers.zygote_lost(-signal.SIGKILL)
    assert not node.heard(Opened)
    node.workers.zygote_ready(READY)
    await node.settle()
    (opened,) = node.heard(Opened)
    assert opened.ports
    assert node.zygote.starts == 2
    assert not node.heard(ZygoteLost)  # nothing that had begun was lost
    assert len(node.heard(Note)) == 2


@lasting
async def test_ranks_are_started_by_the_zygote_that_becomes_ready(node):
    node.workers.start(START)
    node.workers.zygote_lost(-signal.SIGKILL)
    assert node.forks == []
    node.workers.zygote_ready(READY)
    await node.settle()
    assert node.forks == [4, 5]
    assert not node.heard(ZygoteLost)


@lasting
async def test_ranks_that_were_ordered_of_a_zygote_are_lost_with_it(node):
    node.workers.zygote_ready(READY)
    node.workers.start(START)
    await node.settle()
    assert node.forks == [4, 5]
    node.workers.zygote_lost(-signal.SIGKILL)
    await node.settle()
    (lost,) = node.heard(ZygoteLost)
    assert lost.signal == signal.SIGKILL


@lasting
async def test_an_order_to_start_that_waits_can_be_withdrawn(node):
    node.workers.start(START)
    node.workers.end(End(generation=0))
    assert node.heard(Ended)
    node.workers.zygote_ready(READY)
    await node.settle()
    assert node.forks == []


@lasting
async def test_ranks_that_wait_for_their_zygote_reach_no_place(node):
    node.workers.start(START)
    node.workers.steer(Propose(generation=0, place=3))
    assert node.heard(Place)[0].furthest == -1


@pytest.mark.parametrize(("order", "ranks"), [(OPEN, [0]), (START, [4, 5])])
def test_a_pulse_describes_the_zygote_of_ranks_that_wait_for_it(node, order, ranks):
    act = node.workers.open if order is OPEN else node.workers.start
    act(order)
    pulse = node.workers.pulse()
    assert [entry[:2] for entry in pulse.ranks] == [[rank, UNSTARTED] for rank in ranks]
    assert all(state in "RS" and cpu_s > 0 for _, _, state, cpu_s in pulse.ranks)
