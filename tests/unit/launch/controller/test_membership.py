"""Who is waited for, how long, and what follows where nodes do not come."""

import asyncio

import pytest

from echelon.core.shell import FakeShell
from echelon.launch.backends.base import Outlook, StartedProcess
from echelon.launch.backends.local import LocalStarter
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.membership import Membership
from echelon.launch.pool.controller_events import Lost, StarterExited, Woken
from echelon.launch.protocol.messages import Hello
from echelon.run.directory import RunDir
from echelon.run.journal import Journal
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount
from unit.launch.fakes import FakePool, FakeRecovery, joins, make_agent


class Starter(LocalStarter):
    """Says what is known of nodes, one outlook each time it is asked; the last one for ever."""

    def __init__(self, *outlooks):
        super().__init__(FakeShell(), 3)
        self._outlooks = list(outlooks)

    def outlook(self):
        return self._outlooks.pop(0) if len(self._outlooks) > 1 else self._outlooks[0]


@pytest.fixture
def said():
    return []


@pytest.fixture
def blamed():
    return []


@pytest.fixture
def journal(tmp_path, said):
    one = Journal(RunDir.create(tmp_path, "a"), 1, said.append)
    yield one
    one.close()


@pytest.fixture
def recovery():
    return FakeRecovery()


@pytest.fixture
def join(journal, recovery, blamed):
    """Make one for a run on 2:3 nodes."""

    def make(pool, *outlooks):
        return Membership(
            pool,
            Starter(*outlooks or [Outlook()]),
            recovery,
            request=JobSpec(script="train.py", nodes=NodeCount(2, 3)),
            journal=journal,
            blame=lambda failure: blamed.append(failure.node),
        )

    return make


@pytest.mark.parametrize(
    ("outlook", "left"),
    [
        (Outlook(absent=frozenset({2})), {"departed": {2}}),
        (Outlook(lost=frozenset({2})), {"departed": set()}),
        (Outlook(faults={2: "sees nothing"}), {"unfit": "sees nothing"}),
    ],
    ids=["absent", "lost", "bad"],
)
def test_nodes_from_which_nobody_will_come_are_not_waited_for(join, outlook, left, recovery):
    pool = FakePool(0, 1)
    membership = join(pool, outlook)
    assert asyncio.run(membership.await_all()) == []
    assert recovery.departed == left.get("departed", set())
    assert [one.fault for one in pool.unfit.values()] == (
        [left["unfit"]] if "unfit" in left else []
    )


def test_an_agent_that_is_lost_while_others_come_is_brought_back(join, recovery):
    pool = FakePool(0, 1, script=[Lost(agent=make_agent(2), reason="it hung up")])
    membership = join(pool, Outlook(lost=frozenset({2})))
    assert asyncio.run(membership.await_all()) == []
    assert recovery.begun == [[2]]


def test_a_bad_node_is_why_where_it_leaves_too_few(join):
    lost = Outlook(absent=frozenset({2}), faults={1: "sees nothing"})
    (failure,) = asyncio.run(join(FakePool(0), lost).await_all())
    assert (failure.node, failure.message) == ("node1", "it failed its check: sees nothing")


@pytest.mark.parametrize("nodes", [(0, 1), (0,)], ids=["enough", "too few"])
def test_a_node_that_has_failed_is_not_waited_for_and_is_blamed_once(
    join, said, blamed, nodes, journal
):
    """With srun one process brings up all agents: its end tells of no single one."""
    unfit = sorted({0, 1, 2} - set(nodes))
    pool = FakePool(*nodes, unfit=unfit)
    pool.next = None  # nobody is left to wait for
    membership = join(pool)
    failures = asyncio.run(membership.await_all())
    assert [failure.node for failure in failures] == ([] if len(nodes) == 2 else ["node1", "node2"])
    membership.poll()
    assert blamed == [f"node{node}" for node in unfit]
    journal.close()
    told = [f"{node} excluded: it failed its check: no disk" for node in blamed]
    assert said == ([] if failures else told)


def test_only_a_wait_for_nodes_moves_the_deadline_and_it_is_said_once(
    join, said, monkeypatch, journal
):
    monkeypatch.setattr("echelon.launch.controller.membership.JOIN_S", 0.0)
    waits = Outlook(waits="waiting for 3 nodes")
    membership = join(FakePool(0), waits, waits, waits, Outlook())
    (failure,) = asyncio.run(membership.await_all())
    assert failure.message.startswith("1 of 3 nodes joined; missing: node1, node2")
    journal.close()
    assert said == ["a: waiting for 3 nodes"]


UNREACHED = """\
srun: error: Node failure on node2
srun: error: Task launch for StepId=7.0 failed on node node2: Communication connection failure"""
REFUSED = (
    "srun: error: Unable to create step for job 7: Requested node configuration is not available"
)
EXITED = "srun: error: node2: task 2: Exited with exit code 69"


@pytest.mark.parametrize(
    ("line", "again"),
    [(UNREACHED, True), (REFUSED, True), (EXITED, False), ("", False)],
    ids=["unreachable", "not ours any more", "an agent failed", "nothing is said"],
)
def test_where_srun_reaches_not_all_nodes_each_is_started_by_itself(
    join, tmp_path, line, again, recovery
):
    log = tmp_path / "srun-0.log"
    log.write_text(f"srun: a warning\n{line}\nsrun: error: Application launch failed\n")
    exited = StarterExited(started=StartedProcess(pid=1, nodes=frozenset({0, 1, 2}), log=log))
    pool = FakePool(script=[exited, joins(0), joins(1)])
    membership = join(pool, Outlook(absent=frozenset({2})) if again else Outlook())
    assert bool(asyncio.run(membership.await_all())) is not again
    assert recovery.begun == ([{0, 1, 2}] if again else [])


def test_an_agent_that_is_killed_before_it_connects_is_started_again(join, tmp_path, recovery):
    exited = StarterExited(
        started=StartedProcess(pid=1, nodes=frozenset({2}), log=tmp_path / "agent-2.log"),
        killed=True,
    )
    pool = FakePool(script=[joins(0), exited, joins(1), joins(2)])
    assert asyncio.run(join(pool).await_all()) == []
    assert recovery.begun == [{2}]


def test_one_that_srun_says_was_killed_is_started_again(join, tmp_path, recovery):
    log = tmp_path / "srun-0.log"
    log.write_text("srun: error: node2: task 1: Killed\n")
    pool = FakePool(0, script=[None, joins(1), joins(2)])
    pool.started = [StartedProcess(pid=1, nodes=frozenset({0, 1, 2}), log=log)]
    membership = join(pool, Outlook())
    membership._starter.host = lambda node: f"node{node + 1}"
    assert asyncio.run(membership.await_all()) == []
    assert recovery.begun == [{1}]


def test_a_node_that_cannot_be_reached_is_not_waited_for_where_others_suffice(
    join, tmp_path, monkeypatch
):
    monkeypatch.setattr("echelon.launch.controller.membership.UNREACHED_S", 0.0)
    log = tmp_path / "srun-0.log"
    log.write_text(f"{UNREACHED}\n")
    exited = StarterExited(started=StartedProcess(pid=1, nodes=frozenset({0, 1, 2}), log=log))
    pool = FakePool(script=[exited, joins(0), joins(1)])
    assert asyncio.run(asyncio.wait_for(join(pool).await_all(), 10)) == []
    assert pool.agents.keys() == {0, 1}


@pytest.mark.parametrize("wait", [Membership.await_all, Membership.await_missing])
def test_a_stop_that_comes_meanwhile_is_heard(join, wait):
    stop = Stop("cancelled", "it was cancelled", 143)
    with pytest.raises(StopError) as caught:
        asyncio.run(wait(join(FakePool(0, 1, script=[Woken(), stop]))))
    assert caught.value.stop is stop


@pytest.mark.parametrize("when", ["while ranks run", "between generations"])
def test_one_that_comes_back_unfit_is_told_of_and_remembered(join, said, blamed, when, journal):
    pool = FakePool(0, 1, 2)
    membership = join(pool)
    assert asyncio.run(membership.await_all()) == []
    del pool.agents[2]
    pool.reject(Hello(node=2, name="node2", host="h", addresses=[], fault="no disk"))
    if when == "while ranks run":
        membership.poll()
    else:
        asyncio.run(membership.await_missing())
    assert blamed == ["node2"]
    journal.close()
    assert said == ["node2 excluded: it failed its check: no disk"]


def test_where_nobody_is_left_no_node_is_named(join, said, journal):
    membership = join(FakePool(unfit=[2]))
    membership.poll()
    journal.close()
    assert said == ["no node passed its check (node2); node2: no disk"]


def test_where_nobody_may_come_back_there_is_no_waiting(join):
    membership = join(FakePool(0))
    asyncio.run(asyncio.wait_for(membership.await_missing(), 10))
    assert not membership.has_enough()
