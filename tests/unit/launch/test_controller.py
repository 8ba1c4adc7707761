"""How an attempt begins, and what follows where agents cannot be had."""

import asyncio
from dataclasses import replace

import pytest

from echelon.core.rundir import RunDir
from echelon.core.shell import FakeShell
from echelon.errors import CommandError
from echelon.launch.allocation import OwnMachine
from echelon.launch.attempts import orphan
from echelon.launch.controller import Controller
from echelon.launch.entries import Stop
from echelon.launch.muster import read_reason
from echelon.launch.request import from_spec
from echelon.launch.starting import LocalStarter, Outlook
from echelon.launch.succession import NoSuccession
from echelon.readers import NodeCount
from echelon.spec import JobSpec


class Crew:
    """Has the nodes it is given; what happens is in a script."""

    def __init__(self, *nodes, script=(), fails=None):
        self.agents, self.unfit = dict.fromkeys(nodes, "agent"), {}
        self.started, self._script, self._fails = [], list(script), fails

    async def start(self, *_):
        if self._fails:
            raise self._fails

    async def next(self, _deadline_s):
        await asyncio.sleep(0)
        return self._script.pop(0) if self._script else None

    def reject(self, hello):
        self.unfit[hello.node] = hello


class Recall:
    """Nobody comes back."""

    def __init__(self):
        self.departed = set()

    def begin(self):
        pass

    def part_with(self, nodes):
        self.departed |= nodes

    async def find_departed(self, _nodes):
        pass

    def may_come(self, *, soon):  # noqa: ARG002
        return False


@pytest.fixture
def controller(tmp_path):
    one = Controller(
        run=RunDir.create(tmp_path, "a"),
        attempt=1,
        request=from_spec(JobSpec(script="train.py", nodes=NodeCount(2, 3))),
        starter=LocalStarter(FakeShell(), 3),
        allocation=OwnMachine(),
        succession=NoSuccession(),
        notifier=None,
        environ={},
        say=lambda _: None,
    )
    one._recall = Recall()
    yield one
    one._journal.close()


def test_where_agents_cannot_be_started_the_verdict_says_why(controller):
    away = CommandError(("scontrol",), 1, "Unable to contact slurm controller")
    controller._crew = Crew(fails=away)
    failure = asyncio.run(controller._gather()).failure
    assert failure.cause == "start"
    assert "Unable to contact" in failure.message


class Starter(LocalStarter):
    """Says what is known of nodes, one outlook each time it is asked; the last one for ever."""

    def __init__(self, *outlooks):
        super().__init__(FakeShell(), 3)
        self._outlooks = list(outlooks)

    def outlook(self):
        return self._outlooks.pop(0) if len(self._outlooks) > 1 else self._outlooks[0]


@pytest.mark.parametrize(
    ("outlook", "left"),
    [
        (Outlook(absent=frozenset({2})), {"departed": {2}}),
        (Outlook(lost=frozenset({2})), {"departed": set()}),
        (Outlook(faults={2: "sees nothing"}), {"unfit": "sees nothing"}),
    ],
    ids=["absent", "lost", "bad"],
)
def test_nodes_from_which_nobody_will_come_are_not_waited_for(controller, outlook, left):
    controller._crew, controller._starter = Crew(0, 1), Starter(outlook)
    assert asyncio.run(controller._gather()) is None
    assert controller._recall.departed == left.get("departed", set())
    assert [one.fault for one in controller._crew.unfit.values()] == (
        [left["unfit"]] if "unfit" in left else []
    )


def test_a_bad_node_is_the_verdict_where_it_leaves_too_few(controller):
    controller._crew = Crew(0)
    lost = Outlook(absent=frozenset({2}), faults={1: "sees nothing"})
    controller._starter = Starter(lost)
    failure = asyncio.run(controller._gather()).failure
    assert (failure.node, failure.message) == ("node1", "it failed its check: sees nothing")


def test_only_a_wait_for_nodes_moves_the_deadline_and_it_is_said_once(controller, monkeypatch):
    said = []
    monkeypatch.setattr(controller._journal, "report", said.append)
    monkeypatch.setattr("echelon.launch.controller.JOIN_S", 0.0)
    waits = Outlook(waits="waiting for 3 nodes")
    controller._crew, controller._starter = Crew(0), Starter(waits, waits, waits, Outlook())
    failure = asyncio.run(controller._gather()).failure
    assert failure.message.startswith("1 of 3 nodes came")
    assert said == ["a: waiting for 3 nodes"]


def test_who_hears_late_that_its_own_agents_have_ended_the_job_takes_nothing_from_the_queue(
    controller,
):
    withdrawn = []
    controller._conclusion.withdraw = lambda: withdrawn.append(True)
    cancelled = Stop("cancelled", "the job was cancelled", 75)
    controller._run.claim_attempt()
    assert asyncio.run(controller._explain(cancelled)).cause == "cancelled"
    assert withdrawn.pop()
    orphan(controller._run, 1)
    assert asyncio.run(controller._explain(cancelled)).cause == "superseded"
    assert not withdrawn


def test_a_signal_that_slurm_explains_late_is_understood_in_the_end(controller):
    class Late(OwnMachine):
        async def explain(self, stop):
            return replace(stop, cause="cancelled")

    withdrawn = []
    controller._conclusion.withdraw = lambda: withdrawn.append(True)
    controller._run.claim_attempt()
    controller._allocation = Late()
    guessed = Stop("preemption", "node2 was told to stop (SIGTERM)", 143)
    assert asyncio.run(controller._confirm(guessed)).cause == "cancelled"
    assert withdrawn == [True]
    limit = Stop("time limit", "the job's time is over", 75)
    assert asyncio.run(controller._confirm(limit)) is limit


def test_more_nodes_than_before_cost_nothing(controller):
    controller._crew = Crew(0, 1, 2)
    assert asyncio.run(controller._welcome()) is None
    assert controller._failures == []


def test_when_others_were_lost_meanwhile_too_few_may_be_left(controller):
    controller._crew = Crew(0)
    failure = asyncio.run(controller._welcome()).failure
    assert (failure.cause, failure.message) == ("lost node", "1 nodes are left, and it needs 2")


def test_a_stop_that_comes_meanwhile_counts(controller):
    stop = Stop("cancelled", "it was cancelled", 143)
    controller._crew = Crew(0, 1, 2, script=[(None, None), (None, stop)])
    assert asyncio.run(controller._welcome()).failure.cause == "cancelled"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("Traceback …\nModuleNotFoundError: no module\n\n", "ModuleNotFoundError: no module"),
        (
            (
                "srun: error: Task launch failed on node node2: Communication connection failure\n"
                "srun: Job step aborted: Waiting up to 32 seconds\n"
                "srun: error: node1: task 0: Killed\n"
            ),
            "srun: error: Task launch failed on node node2: Communication connection failure",
        ),
    ],
)
def test_why_agents_did_not_come_is_what_was_said_first(tmp_path, text, reason):
    (tmp_path / "log").write_text(text)
    assert read_reason(tmp_path / "log") == reason
    assert read_reason(tmp_path / "none") == ""
