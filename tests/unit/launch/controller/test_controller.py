"""How an attempt goes from one generation to the next, and what follows from a stop."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from echelon.core.shell import FakeShell
from echelon.errors import CommandError
from echelon.launch.backends.local import LocalAllocation
from echelon.launch.backends.stop import Stop, StopError
from echelon.launch.controller.controller import Controller
from echelon.launch.controller.finalize import Finalizer
from echelon.launch.controller.notify import Notifier
from echelon.launch.controller.slots import Slots
from echelon.launch.protocol.messages import Pace
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.node_record import NodeRecord
from echelon.run.verdict import Failure
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount
from unit.launch.fakes import FakePool, FakeRecovery, FakeStandby, make_agent, make_backend

LOST = Failure(cause="lost node", message="it is gone", node="node1")


class FakeMembership:
    """Whoever waits hears of a stop, if there is one."""

    def __init__(self, *, first=None, later=None, enough=True, failures=()):
        self._first, self._later, self._enough = first, later, enough
        self._failures = list(failures)

    async def await_all(self):
        if self._first:
            raise StopError(self._first)
        return self._failures

    async def await_missing(self):
        if self._later:
            raise StopError(self._later)

    def has_enough(self):
        return self._enough


class FakeRendezvous:
    async def find(self, _agents, _number, _hung):
        return None


class FakeGeneration:
    """One that has ended as it was given."""

    def __init__(self, *, stop=None, made_room=False, failures=()):
        self.stop, self.made_room, self.failures = stop, made_room, list(failures)
        self.stacks = {}

    async def find_endpoint(self, rendezvous):
        return await rendezvous.find([], 0, None)

    async def run(self, _endpoint, _ranks_of):
        pass


@pytest.fixture
def make(tmp_path):
    """Make a controller for a run on 2:3 nodes, and what it leaves behind."""
    run, journals = RunDir.create(tmp_path, "a"), []
    run.claim_attempt()

    def make(
        *generations,
        pool=None,
        membership=None,
        most_nodes=3,
        uses_library=True,
        preflight=False,
        say=lambda _: None,
        **parts,
    ):
        pool, backend = pool or FakePool(0, 1), make_backend(**parts)
        request = JobSpec(script="train.py", nodes=NodeCount(2, most_nodes), preflight=preflight)
        journals.append(Journal(run, 1, say))
        left = iter(generations)
        one = Controller(
            request=request,
            environ={},
            agent_arguments=["run"],
            uses_library=uses_library,
            backend=backend,
            journal=journals[0],
            history=History(),
            record=NodeRecord(tmp_path / "record", run.run_id, keep_s=60.0),
            pool=pool,
            slots=Slots(request, backend.starter, pool),
            recovery=FakeRecovery(),
            membership=membership or FakeMembership(),
            rendezvous=FakeRendezvous(),
            make_generation=lambda _number, _agents: next(left),
            finalizer=Finalizer(
                request=request,
                history=History(),
                backend=backend,
                journal=journals[0],
                notifier=Notifier("", run=run, shell=FakeShell(), environ={}),
                environ={},
            ),
        )
        return one, SimpleNamespace(run=run, standby=backend.standby)

    yield make
    for journal in journals:
        journal.close()


def carry(controller, left):
    """Return the exit code of an attempt, its outcome, and its verdict if there is one."""
    code = asyncio.run(controller.run())
    outcome = json.loads(left.run.outcome(1).read_text())
    verdict = left.run.verdict
    return code, outcome, json.loads(verdict.read_text()) if verdict.exists() else None


def events(left):
    return [
        json.loads(line) for line in left.run.events_of("controller-1").read_text().splitlines()
    ]


def test_where_agents_cannot_be_started_the_verdict_says_why(make):
    away = CommandError(("scontrol",), 1, "Unable to contact slurm controller")
    code, _, verdict = carry(*make(pool=FakePool(fails=away)))
    assert code == 69
    assert verdict["failure"]["cause"] == "start"
    assert "Unable to contact" in verdict["failure"]["message"]


def test_a_preflight_on_this_machine_says_that_it_examines_nothing(make):
    said = []
    controller, left = make(FakeGeneration(), preflight=True, say=said.append)
    code, _, _ = carry(controller, left)
    assert code == 0
    controller._journal.close()
    assert "preflight had no effect" in said[0]
    assert "echelon doctor" in said[0]


def test_a_command_that_our_own_signal_has_ended_is_no_failed_start(make):
    """scancel signals all processes of a batch script."""
    pool = FakePool(fails=CommandError(("scontrol",), -15, ""))
    pool.signalled = Stop("cancelled", "the controller received SIGTERM", 143)
    code, outcome, verdict = carry(*make(pool=pool))
    assert (code, outcome["state"], outcome["next"]) == (143, "CANCELLED", "")
    assert verdict["failure"]["cause"] == "cancelled"


def test_a_signal_that_slurm_explains_late_is_understood_in_the_end(make):
    class Late(LocalAllocation):
        async def explain(self, stop):
            return replace(stop, cause="cancelled")

    guessed = Stop("preemption", "node2 received SIGTERM", 143)
    controller, left = make(FakeGeneration(stop=guessed), allocation=Late())
    code, outcome, _ = carry(controller, left)
    assert (code, outcome["state"], left.standby.withdrawn) == (143, "CANCELLED", 1)


def test_what_is_sure_is_not_asked_again(make):
    class Deaf(LocalAllocation):
        async def explain(self, _stop):
            raise AssertionError

    limit = Stop("time limit", "the job's time is over", 75)
    code, outcome, _ = carry(*make(FakeGeneration(stop=limit), allocation=Deaf()))
    assert (code, outcome["state"]) == (75, "TIMEOUT")


def test_more_nodes_than_before_cost_nothing(make):
    grown, done = FakeGeneration(made_room=True), FakeGeneration()
    controller, left = make(grown, done, pool=FakePool(0, 1, 2))
    assert carry(controller, left)[0] == 0
    assert "restart" not in [event["kind"] for event in events(left)]


def test_when_others_were_lost_meanwhile_too_few_may_be_left(make):
    few = {"pool": FakePool(0), "membership": FakeMembership(enough=False)}
    _, outcome, verdict = carry(*make(FakeGeneration(made_room=True), **few))
    failure = verdict["failure"]
    assert outcome["state"] == "FAILED"
    assert failure["cause"] == "lost node"
    assert failure["message"] == "1 node is left; the run needs at least 2"


def test_a_failure_costs_a_restart_and_another_generation_follows(make):
    controller, left = make(FakeGeneration(failures=[LOST]), FakeGeneration())
    assert carry(controller, left)[0] == 0
    (restart,) = [event for event in events(left) if event["kind"] == "restart"]
    assert restart["verdict"]["failure"]["node"] == "node1"


def test_a_verdict_names_whose_memory_was_shared(make):
    killed = Failure(cause="out of memory", message="killed by the kernel", node="node1")
    others = {"node1": ["sweep-2", "sweep-1"], "node2": ["sweep-3"]}
    controller, left = make(
        FakeGeneration(failures=[killed]), FakeGeneration(), neighbours=others.__getitem__
    )
    assert carry(controller, left)[0] == 0
    (restart,) = [event for event in events(left) if event["kind"] == "restart"]
    message = restart["verdict"]["failure"]["message"]
    assert message == "killed by the kernel; its memory was shared with sweep-1, sweep-2"


@pytest.mark.parametrize("began", [False, True])
def test_a_script_that_may_not_be_restarted_may_start_on_other_nodes(make, began):
    """Nobody asked for restarts, for the script does not resume: but it has not run yet."""
    bad = Failure(cause="start", message="it failed its check", node="node2", exit_code=69)
    standby = FakeStandby(follows="standby")
    controller, left = make(
        *([FakeGeneration(failures=[bad])] if began else []),
        pool=FakePool(0),
        membership=FakeMembership(failures=[] if began else [bad], enough=False),
        most_nodes=2,
        uses_library=False,
        standby=standby,
    )
    _, outcome, _ = carry(controller, left)
    assert outcome["next"] == ("" if began else "standby")


@pytest.mark.parametrize("when", ["at the beginning", "after a failure", "after room was made"])
def test_a_stop_that_comes_while_nodes_are_waited_for_is_how_it_ends(make, when):
    stop = Stop("cancelled", "it was cancelled", 143)
    first, later = (stop, None) if when == "at the beginning" else (None, stop)
    room = when == "after room was made"
    generation = FakeGeneration(made_room=room, failures=[] if room else [LOST])
    code, outcome, _ = carry(*make(generation, membership=FakeMembership(first=first, later=later)))
    assert (code, outcome["state"]) == (143, "CANCELLED")


def test_ranks_are_told_of_a_limit_as_early_as_their_pace_needs(make):
    pool = FakePool()
    controller, _ = make(pool=pool)
    assert controller.lead_s() == 0.0  # nobody would save
    pool.agents[0] = make_agent(0, Pace(save_us=60_000_000, stop_interval_us=1_000_000))
    assert controller.lead_s() == 10.0 + 2.0 + 120.0
