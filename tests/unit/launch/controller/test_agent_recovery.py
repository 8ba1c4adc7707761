"""Bringing agents back: who is tried, how often, and when it is given up."""

import asyncio
from types import SimpleNamespace

import pytest

from echelon.errors import UnavailableError
from echelon.launch.controller import agent_recovery as module
from echelon.launch.controller.agent_recovery import COMEBACKS, AgentRecovery
from echelon.launch.pool.agent_pool import Home


class AgentPool:
    """Three nodes of which the second is missing."""

    def __init__(self, *tries):
        self.agents, self.unfit = {0: "a", 2: "c"}, {}
        self.homes = {1: Home("127.0.0.1", 7, 0)}
        self.calls, self.ended, self.woken = 0, 0, 0
        self.overlapped = False
        """Whether a try began before the last one had ended."""
        self._tries = list(tries)
        """What becomes of each try; the last stays."""

    async def recall(self, node):
        self.overlapped |= self.calls > self.ended
        self.calls += 1
        what = self._tries.pop(0) if len(self._tries) > 1 else self._tries[0]
        if isinstance(what, Exception):
            raise what
        if what == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                self.ended += 1
        if what == "unfit":
            self.unfit[node] = "b"
        if what == "comes":
            self.agents[node] = "b"
        return what == "comes"

    def wake(self):
        self.woken += 1


class Allocation:
    """Says one after the other whether it has the node that is asked for; the last word stays."""

    def __init__(self, *words):
        self._words, self.asked = list(words), []

    async def held(self, hosts):
        self.asked.append(sorted(hosts))
        word = self._words.pop(0) if len(self._words) > 1 else self._words[0]
        return None if word is None else frozenset(hosts if word else ())


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.001))
    monkeypatch.setattr(module, "GLANCE_S", 0.001)


def make(crew, allocation, report=lambda _: None, **options):
    departed = []
    recall = AgentRecovery(
        crew,
        SimpleNamespace(nodes=3, host="node{}".format),
        allocation,
        departed=departed.append,
        tell_fault=lambda task: task.cancelled() or task.result(),
        report=report,
        **options,
    )
    return recall, departed


def bring_back(crew, allocation):
    """Let it work to its end; return which nodes have left the job."""

    async def scenario():
        recall, departed = make(crew, allocation)
        recall.begin()
        recall.begin()  # somebody is at it already
        assert recall.may_come(soon=True)
        await asyncio.gather(*recall._tasks.values())
        assert not recall.may_come(soon=False)
        assert crew.woken
        return departed

    return asyncio.run(asyncio.wait_for(scenario(), 10))


def test_the_one_that_is_missing_is_tried_until_it_comes():
    crew, allocation = AgentPool("fails", "fails", "comes"), Allocation(True)
    assert bring_back(crew, allocation) == []
    assert crew.calls == 3
    assert allocation.asked[0] == ["node1"]


def test_a_node_that_has_left_the_job_is_not_tried():
    crew = AgentPool("comes")
    assert bring_back(crew, Allocation(False)) == [1]
    assert crew.calls == 0


def test_a_try_is_given_up_when_the_node_turns_out_to_be_dead():
    crew = AgentPool("hangs")
    assert bring_back(crew, Allocation(True, True, None, False)) == [1]
    assert crew.calls == 1
    assert crew.ended == 1


def test_the_users_check_has_its_own_time(monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.01)
    crew, said = AgentPool("hangs", "comes"), []

    async def scenario():
        recall, _ = make(crew, Allocation(True), said.append, check_s=0.02)
        recall.begin()
        while recall.may_come(soon=False):  # noqa: ASYNC110
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert [text.partition(";")[0] for text in said] == ["node1: no agent came within 0.03 s"]


def test_a_try_that_hangs_is_ended_and_repeated(monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.01)
    crew, said = AgentPool("hangs", "hangs", "comes"), []

    async def scenario():
        recall, departed = make(crew, Allocation(True), said.append)
        recall.begin()
        await asyncio.gather(*recall._tasks.values())
        return departed

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == []
    assert (crew.calls, crew.ended, crew.overlapped) == (3, 2, False)
    assert len(said) == 2
    assert said[0].startswith("node1: no agent came within 0.01 s")


def test_one_that_fails_its_check_is_not_tried_again():
    crew = AgentPool("unfit")
    assert bring_back(crew, Allocation(True)) == []
    assert crew.calls == 1

    async def scenario():
        recall, _ = make(crew, Allocation(True))
        recall.begin()
        return recall.may_come(soon=False)

    assert asyncio.run(scenario()) is False


def test_a_try_that_cannot_be_made_is_one_that_failed():
    crew = AgentPool(UnavailableError("slurmctld is away"), OSError("no process"), "comes")
    assert bring_back(crew, Allocation(None, None, True)) == []
    assert crew.calls == 3


def test_one_that_is_lost_again_and_again_is_let_go():
    crew = AgentPool("comes")

    async def scenario():
        recall, departed = make(crew, Allocation(*[True] * (4 * COMEBACKS), False))
        for _ in range(COMEBACKS):
            recall.begin()
            await asyncio.gather(*recall._tasks.values())
            del crew.agents[1]
        recall.begin()
        assert not recall.may_come(soon=False)  # nobody waits for it
        await asyncio.gather(*recall._tasks.values())
        return departed

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [1]  # but it may still leave
    assert crew.calls == COMEBACKS


def test_with_a_host_that_does_not_answer_nobody_loses_time(monkeypatch):
    crew = AgentPool("hangs")

    async def never(*_):
        raise TimeoutError

    monkeypatch.setattr(module.asyncio, "open_connection", never)

    async def scenario():
        recall, _ = make(crew, Allocation(True))
        recall.begin()
        while recall.may_come(soon=True):  # noqa: ASYNC110
            await asyncio.sleep(0)
        needed = recall.may_come(soon=False)
        recall.close()
        await asyncio.sleep(0.01)
        return needed

    assert asyncio.run(asyncio.wait_for(scenario(), 10))


def test_many_that_are_missing_are_asked_for_at_once():
    crew = AgentPool("fails")
    crew.agents, crew.homes = {}, {}
    allocation = Allocation(False)

    async def scenario():
        recall, departed = make(crew, allocation)
        recall.begin()
        await asyncio.gather(*recall._tasks.values())
        return departed

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [0, 1, 2]
    assert allocation.asked == [["node0", "node1", "node2"]]
