"""Bringing agents back: who is tried, how often, and when it is given up."""

import asyncio
from types import SimpleNamespace

import pytest

from echelon.errors import UnavailableError
from echelon.launch.controller import agent_recovery as module
from echelon.launch.controller.agent_recovery import COMEBACKS, AgentRecovery
from echelon.run.events import NodeDeparted
from unit.launch.fakes import FakeJournal, FakePool, make_agent


def three(*restarts):
    """Three nodes of which the second is missing."""
    pool = FakePool(0, 2, restarts=restarts)
    pool.known = {1: make_agent(1)}
    return pool


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


def make(pool, allocation, **options):
    journal = FakeJournal()
    starter = SimpleNamespace(nodes=3, host="node{}".format)
    recovery = AgentRecovery(pool, starter, allocation, journal=journal, count_slots=len, **options)
    return recovery, journal


def departed(journal):
    return [one.node for one in journal.notes if isinstance(one, NodeDeparted)]


def bring_back(pool, allocation):
    """Let it work to its end; return which nodes have left the job."""

    async def scenario():
        recovery, journal = make(pool, allocation)
        recovery.begin()
        recovery.begin()  # somebody is at it already
        assert recovery.may_come(soon=True)
        await recovery.wait()
        assert not recovery.may_come(soon=False)
        assert pool.woken
        return departed(journal)

    return asyncio.run(asyncio.wait_for(scenario(), 10))


def test_the_one_that_is_missing_is_tried_until_it_comes():
    pool, allocation = three("fails", "fails", "comes"), Allocation(True)
    assert bring_back(pool, allocation) == []
    assert pool.restarts == 3
    assert allocation.asked[0] == ["node1"]


def test_a_node_that_has_left_the_job_is_not_tried():
    pool = three("comes")
    assert bring_back(pool, Allocation(False)) == [1]
    assert pool.restarts == 0


def test_a_try_is_given_up_when_the_node_turns_out_to_be_dead():
    pool = three("hangs")
    assert bring_back(pool, Allocation(True, True, None, False)) == [1]
    assert (pool.restarts, pool.ended) == (1, 1)


def test_the_users_check_has_its_own_time(monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.01)
    pool = three("hangs", "comes")

    async def scenario():
        recovery, journal = make(pool, Allocation(True), check_s=0.02)
        recovery.begin()
        await recovery.wait()
        return journal

    journal = asyncio.run(asyncio.wait_for(scenario(), 10))
    assert journal.reports == ["node1: no agent connected within 0.03 s; trying again"]


def test_a_try_that_hangs_is_ended_and_repeated(monkeypatch):
    monkeypatch.setattr(module, "TRY_S", 0.01)
    pool = three("hangs", "hangs", "comes")

    async def scenario():
        recovery, journal = make(pool, Allocation(True))
        recovery.begin()
        await recovery.wait()
        return journal

    journal = asyncio.run(asyncio.wait_for(scenario(), 10))
    assert departed(journal) == []
    assert (pool.restarts, pool.ended, pool.overlapped) == (3, 2, False)
    assert journal.reports == ["node1: no agent connected within 0.01 s; trying again"] * 2


def test_one_that_fails_its_check_is_not_tried_again():
    pool = three("unfit")
    assert bring_back(pool, Allocation(True)) == []
    assert pool.restarts == 1

    async def scenario():
        recovery, _ = make(pool, Allocation(True))
        recovery.begin()
        return recovery.may_come(soon=False)

    assert asyncio.run(scenario()) is False


def test_a_try_that_cannot_be_made_is_one_that_failed():
    pool = three(UnavailableError("slurmctld is away"), OSError("no process"), "comes")
    assert bring_back(pool, Allocation(None, None, True)) == []
    assert pool.restarts == 3


def test_one_that_is_lost_again_and_again_is_let_go():
    pool = three("comes")

    async def scenario():
        recovery, journal = make(pool, Allocation(*[True] * (4 * COMEBACKS), False))
        for _ in range(COMEBACKS):
            recovery.begin()
            await recovery.wait()
            del pool.agents[1]
        recovery.begin()
        assert not recovery.may_come(soon=False)  # nobody waits for it
        await recovery.wait()
        return departed(journal)

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [1]  # but it may still leave
    assert pool.restarts == COMEBACKS


def test_with_a_host_that_does_not_answer_nobody_loses_time(monkeypatch):
    pool = three("hangs")

    async def never(*_):
        raise TimeoutError

    monkeypatch.setattr(module.asyncio, "open_connection", never)

    async def scenario():
        recovery, _ = make(pool, Allocation(True))
        recovery.begin()
        while recovery.may_come(soon=True):  # noqa: ASYNC110
            await asyncio.sleep(0)
        needed = recovery.may_come(soon=False)
        recovery.close()
        await asyncio.sleep(0.01)
        return needed

    assert asyncio.run(asyncio.wait_for(scenario(), 10))


def test_many_that_are_missing_are_asked_for_at_once():
    pool = three("fails")
    pool.agents, pool.known = {}, {}
    allocation = Allocation(False)

    async def scenario():
        recovery, journal = make(pool, allocation)
        recovery.begin()
        await recovery.wait()
        return departed(journal)

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == [0, 1, 2]
    assert allocation.asked == [["node0", "node1", "node2"]]
