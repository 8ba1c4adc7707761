"""How an attempt goes from one generation to the next, and what follows from a stop."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from echelon.core.shell import FakeShell
from echelon.errors import CommandError
from echelon.launch.backends.local import LocalStarter, OwnMachine
from echelon.launch.controller.controller import Controller
from echelon.launch.controller.succession import NoSuccession
from echelon.launch.protocol.messages import Pace
from echelon.launch.protocol.stop import Stop, StopError
from echelon.run.attempts import orphan
from echelon.run.directory import RunDir
from echelon.run.verdict import Failure
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount


class AgentPool:
    """Has the nodes it is given, and may not be able to start any."""

    def __init__(self, *nodes, fails=None):
        self.agents = dict.fromkeys(nodes, SimpleNamespace(pace=Pace()))
        self.homes, self._fails = {}, fails

    async def start(self, *_):
        if self._fails:
            raise self._fails

    async def leave(self):
        pass

    def post(self, _stop):
        pass


class Membership:
    """Whoever waits hears of a stop, if there is one."""

    def __init__(self, *, stop=None, enough=True):
        self._stop, self._enough = stop, enough

    async def await_missing(self):
        if self._stop:
            raise StopError(self._stop)

    await_all = await_missing

    def has_enough(self):
        return self._enough


@pytest.fixture
def controller(tmp_path):
    one = Controller(
        run=RunDir.create(tmp_path, "a"),
        attempt=1,
        request=JobSpec(script="train.py", nodes=NodeCount(2, 3)),
        digest="",
        starter=LocalStarter(FakeShell(), 3),
        allocation=OwnMachine(),
        succession=NoSuccession(),
        notifier=None,
        environ={},
        say=lambda _: None,
    )
    yield one
    one._journal.close()


def test_where_agents_cannot_be_started_the_verdict_says_why(controller):
    away = CommandError(("scontrol",), 1, "Unable to contact slurm controller")
    controller._pool = AgentPool(fails=away)
    failure = asyncio.run(controller._gather()).failure
    assert failure.cause == "start"
    assert "Unable to contact" in failure.message


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
    controller._pool, controller._membership = AgentPool(0, 1, 2), Membership()
    assert asyncio.run(controller._welcome()) is None
    assert controller._failures == []


def test_when_others_were_lost_meanwhile_too_few_may_be_left(controller):
    controller._pool, controller._membership = AgentPool(0), Membership(enough=False)
    failure = asyncio.run(controller._welcome()).failure
    assert (failure.cause, failure.message) == ("lost node", "1 nodes are left, and it needs 2")


@pytest.mark.parametrize("when", ["at the beginning", "after a failure", "after room was made"])
def test_a_stop_that_comes_while_nodes_are_waited_for_is_how_it_ends(controller, when):
    async def run_generation(_number):
        failures = [Failure(cause="lost node", message="it is gone", node="node1")]
        room = when == "after room was made"
        return SimpleNamespace(stop=None, made_room=room, failures=[] if room else failures)

    async def gather():
        return None

    controller._run.claim_attempt()
    controller._run_generation = run_generation
    controller._pool = AgentPool(0, 1)
    controller._membership = Membership(stop=Stop("cancelled", "it was cancelled", 143))
    if when != "at the beginning":
        controller._gather = gather
    assert asyncio.run(controller.run()) == 143
    assert json.loads(controller._run.outcome(1).read_text())["state"] == "CANCELLED"
