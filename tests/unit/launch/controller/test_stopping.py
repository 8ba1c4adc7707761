"""Ranks that step at their own pace are brought to one place, whatever the delays."""

import asyncio
import os
import signal

from hypothesis import given
from hypothesis import strategies as st

from echelon.launch.agent.local_workers import await_place
from echelon.launch.controller.stopping import StopConsensus
from echelon.launch.protocol.messages import Commit, Place, Propose
from echelon.launch.protocol.rank_shm import VARIABLE, RankShm
from echelon.train.stopping import StopBarrier


class Node:
    """An agent with ranks, in a world where messages take their time."""

    def __init__(self, ranks):
        self.passed = [0] * ranks
        self.waiting = [0] * ranks
        self.proposed = 0
        self.stopped = [False] * ranks

    def run(self, steps):
        for rank in range(len(self.passed)):
            for _ in range(steps):
                self._step(rank)

    def _step(self, rank):
        if self.waiting[rank] and self.waiting[rank] == self.proposed:
            return
        self.waiting[rank] = 0
        self.passed[rank] += 1
        if self.passed[rank] == self.proposed:
            self.waiting[rank] = self.passed[rank]

    def answer(self):
        if self.proposed and not all(p >= self.proposed for p in self.passed):
            return None
        here = all(w == self.proposed for w in self.waiting)
        return Place(generation=0, proposed=self.proposed, furthest=max(self.passed), waiting=here)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(0, 50),
    st.lists(st.integers(0, 30), max_size=40),
)
def test_all_ranks_come_to_one_place(shape, lead, delays):
    nodes = [Node(ranks) for ranks in shape]
    consensus = StopConsensus(range(len(nodes)), 0)
    order, pauses = consensus.begin(), iter([lead, *delays])
    for _ in range(60):
        steps = next(pauses, 0)  # how far ranks get while a message travels
        for node in nodes:
            node.run(steps)
            node.proposed = order.place
        answers = {}
        while len(answers) < len(nodes):
            for number, node in enumerate(nodes):
                if (answer := node.answer()) is not None:
                    answers.setdefault(number, answer)
                node.run(1)
        for number, answer in answers.items():
            order = consensus.hear(number, answer) or order
        if consensus.committed:
            break
    assert consensus.committed
    assert isinstance(order, Commit)
    assert {w for node in nodes for w in node.waiting} == {order.place}


def test_a_rank_that_does_not_listen_ends_the_talk():
    consensus = StopConsensus([0, 1], 3)
    assert consensus.begin() == Propose(generation=3, place=0)
    assert consensus.hear(0, Place(generation=3, proposed=0, furthest=-1, waiting=False)) is None
    assert consensus.unresponsive


def test_answers_to_an_earlier_question_do_not_count():
    consensus = StopConsensus([0], 0)
    consensus.begin()
    old = Place(generation=0, proposed=0, furthest=5, waiting=False)
    assert consensus.hear(0, old) == Propose(generation=0, place=6)
    assert consensus.hear(0, old) is None
    assert consensus.hear(9, Place(generation=0, proposed=6, furthest=6, waiting=True)) is None
    waits = Place(generation=0, proposed=6, furthest=6, waiting=True)
    assert consensus.hear(0, waits) == Commit(generation=0, place=6)


def test_a_rank_waits_at_the_place_until_the_word_comes(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    line = StopBarrier({VARIABLE: str(tmp_path / "beacon")})
    assert agent.passed == -1
    with line:
        assert agent.passed == 0
        os.kill(os.getpid(), signal.SIGTERM)  # held off
    assert agent.passed == -1
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not line.arrive()
    agent.proposed = 2
    if (child := os.fork()) == 0:
        os._exit(10 + line.arrive())
    answer = asyncio.run(await_place(lambda: [agent], 0, 2))
    assert answer == Place(generation=0, proposed=2, furthest=2, waiting=True)
    agent.committed = 2
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11


def test_a_rank_that_waits_goes_on_to_a_later_place(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    line = StopBarrier({VARIABLE: str(tmp_path / "beacon")})
    agent.proposed = 1
    if (child := os.fork()) == 0:
        os._exit(10 + line.arrive() + line.arrive() * 2)
    asyncio.run(await_place(lambda: [agent], 0, 1))
    agent.proposed = 2
    asyncio.run(await_place(lambda: [agent], 0, 2))
    agent.committed = 2
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12


def test_a_rank_that_has_passed_says_so(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    line = StopBarrier({VARIABLE: str(tmp_path / "beacon")})
    for _ in range(3):
        assert not line.arrive()
    agent.proposed = 2
    assert not line.arrive()
    answer = asyncio.run(await_place(lambda: [agent], 0, 2))
    assert answer == Place(generation=0, proposed=2, furthest=4, waiting=False)


def test_a_loop_of_ones_own_tells_its_steps_and_stops_where_all_do(tmp_path):
    agent = RankShm.create(tmp_path / "beacon")
    with StopBarrier({VARIABLE: str(tmp_path / "beacon")}) as line:
        assert not line.reached(101)  # it had begun after step 100
        assert not line.reached(102)
        assert (agent.first, agent.step, agent.passed) == (100, 102, 2)
        agent.proposed = agent.committed = 3
        assert line.reached(103)


def test_a_warning_after_the_last_step_does_not_kill_a_rank(tmp_path):
    RankShm.create(tmp_path / "beacon")
    child = os.fork()
    if child == 0:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        with StopBarrier({VARIABLE: str(tmp_path / "beacon")}):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)  # ends it as before the training
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_without_a_beacon_nobody_stops():
    line = StopBarrier({})
    assert not line.reached(2)
    line.tell(3)
    assert not line.arrive()
