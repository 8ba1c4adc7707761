"""Bringing agents back: who is tried, how often, and when it is given up."""

import asyncio
from types import SimpleNamespace

import pytest

from echelon.errors import UnavailableError
from echelon.launch import recall as module
from echelon.launch.recall import COMEBACKS, PAUSES_S, Recall


class Crew:
    """Three nodes of which the second is missing; it comes at a given try."""

    def __init__(self, comes_at=None, fails=None):
        self.agents, self.unfit = {0: "a", 2: "c"}, {}
        self.tries, self.woken = 0, 0
        self._comes_at, self._fails = comes_at, fails

    async def recall(self, node):
        self.tries += 1
        if self._fails:
            raise self._fails
        if self.tries == self._comes_at:
            self.agents[node] = "b"
        return self.tries == self._comes_at

    def wake(self):
        self.woken += 1


class Allocation:
    """Says one after the other whether it holds a node; the last word stays."""

    def __init__(self, *words):
        self._words, self.asked = list(words), []

    async def holds(self, host):
        self.asked.append(host)
        return self._words.pop(0) if len(self._words) > 1 else self._words[0]


@pytest.fixture
def paused(monkeypatch):
    """How long it has paused; nobody waits."""
    pauses = []
    real = asyncio.sleep

    async def sleep(pause_s):
        pauses.append(pause_s)
        await real(0)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return pauses


def bring_back(crew, allocation, until=lambda recall: not recall._tasks, turns=1):
    """Let it work; return it."""
    faults = []

    async def scenario():
        recall = Recall(
            crew,
            SimpleNamespace(nodes=3, host="node{}".format),
            allocation,
            departed=lambda: faults.append("departed"),
            tell_fault=lambda task: task.cancelled() or task.exception(),
        )
        for _ in range(turns):
            recall.begin()
            recall.begin()  # somebody is at it already
            for _ in range(200):
                if until(recall):
                    break
                await asyncio.sleep(0)
            if turns > 1:
                crew.agents.pop(1, None)
        recall.close()
        return recall

    return asyncio.run(scenario()), faults


def test_the_one_that_is_missing_is_tried_until_it_comes(paused):
    crew, allocation = Crew(comes_at=3), Allocation(True)
    recall, departed = bring_back(crew, allocation)
    assert crew.tries == 3
    assert allocation.asked == ["node1"] * 3
    assert [pause_s for pause_s in paused if pause_s] == list(PAUSES_S[1:3])
    assert not recall.is_hopeful()
    assert (crew.woken, departed, recall.departed) == (1, [], set())


def test_a_node_that_has_left_the_job_is_not_tried(paused):
    crew = Crew(comes_at=1)
    recall, departed = bring_back(crew, Allocation(False))
    assert (crew.tries, crew.woken, departed, recall.departed) == (0, 1, ["departed"], {1})
    recall, _ = bring_back(crew, Allocation(None, None, False))
    assert (crew.tries, recall.departed) == (0, {1})  # while Slurm is away, nobody knows
    assert paused


def test_a_try_is_given_up_when_the_node_turns_out_to_be_dead(monkeypatch):
    monkeypatch.setattr(module, "GLANCE_S", 0.01)
    crew, ended = Crew(), []

    async def hang(_node):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    crew.recall = hang
    allocation = Allocation(True, None, False)

    async def scenario():
        recall = Recall(
            crew,
            SimpleNamespace(nodes=3, host=str),
            allocation,
            departed=lambda: None,
            tell_fault=lambda _task: None,
        )
        recall.begin()
        await asyncio.gather(*recall._tasks.values())
        return recall.departed

    assert asyncio.run(scenario()) == {1}
    assert ended


def test_one_that_does_not_come_may_still_leave(paused):
    crew, allocation = Crew(), Allocation(*[True] * 6, False)
    recall, departed = bring_back(crew, allocation)
    assert crew.tries == len(PAUSES_S)
    assert paused.count(module.LOOK_S) == 3
    assert (departed, recall.departed) == (["departed"], {1})


def test_one_that_fails_its_check_is_not_tried_again(paused):
    crew = Crew()
    crew.unfit[1] = "unfit"
    assert bring_back(crew, Allocation(True))[0].is_hopeful() is False
    assert crew.tries == 0
    crew.unfit.clear()

    async def fail(node):
        crew.tries += 1
        crew.unfit[node] = "unfit"
        return False

    crew.recall = fail
    bring_back(crew, Allocation(True))
    assert crew.tries == 1
    assert paused


def test_a_try_that_cannot_be_made_is_one_that_failed(paused):
    crew = Crew(fails=UnavailableError("slurmctld is away"))
    recall, _ = bring_back(crew, Allocation(True), until=lambda recall: not recall.is_hopeful())
    assert crew.tries == len(PAUSES_S)
    assert not recall.is_hopeful()
    assert paused


def test_one_that_is_lost_again_and_again_is_let_go(paused):
    crew = Crew()

    async def come(node):
        crew.tries += 1
        crew.agents[node] = "b"
        return True

    crew.recall = come
    gone = [True] * (COMEBACKS + 2)
    bring_back(crew, Allocation(*gone, False), turns=COMEBACKS + 2)
    assert crew.tries == COMEBACKS
    assert paused


def test_in_the_end_nobody_is_waited_for():
    async def scenario():
        never = asyncio.Event()
        crew = Crew()
        crew.recall = lambda _node: never.wait()
        recall = Recall(
            crew,
            SimpleNamespace(nodes=3, host=str),
            Allocation(True),
            departed=lambda: None,
            tell_fault=lambda _task: None,
        )
        recall.begin()
        await asyncio.sleep(0.01)  # until it tries
        assert recall.is_hopeful()
        recall.close()
        await asyncio.sleep(0)
        return recall.is_hopeful()

    assert asyncio.run(scenario()) is False
