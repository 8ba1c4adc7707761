"""Plans for a step on Ray, what it tells, and what a controller makes of that."""

import asyncio
import os

import pytest

from echelon.core.rundir import RunDir
from echelon.core.shell import FakeShell
from echelon.launch.muster import read_reason
from echelon.launch.rayplan import (
    CANCELLED,
    NODES,
    Place,
    Plan,
    Standing,
    bundle_of,
    choose_count,
    describe_wait,
    is_current,
    name_places,
    parse_plan,
    read_standing,
)
from echelon.launch.raystarting import RayAllocation, RayStarter
from echelon.launch.raystep import StepError, load_ray, parse_version
from echelon.launch.request import from_spec
from echelon.launch.succession import OthersSuccession, choose_succession
from echelon.readers import NodeCount
from echelon.spec import JobSpec

PLAN = Plan(
    run="/runs/train-abcd",
    attempt=2,
    nodes=[0, 1],
    low=1,
    high=3,
    bundle={"CPU": 2.0},
    argv=["python", "launcher", "agent"],
)
TWO = {
    0: Place(id="aa", name="alpha", address="10.0.0.1"),
    1: Place(id="bb", name="beta", address="10.0.0.2"),
}


def standing(*alive, pid=None):
    return Standing(pid=pid or os.getpid(), places=TWO, alive=frozenset(alive))


def test_a_plan_arrives_as_it_was_made():
    assert parse_plan(PLAN.render()) == PLAN
    assert PLAN.group == "train-abcd-2"
    assert str(PLAN.folder) == "/runs/train-abcd/attempts/2"


@pytest.mark.parametrize(
    ("spec", "bundle"),
    [
        (JobSpec(), {"CPU": 1.0}),
        (JobSpec(procs=4), {"CPU": 4.0}),
        (JobSpec(gpus=4, cpus_per_gpu=8), {"CPU": 32.0, "GPU": 4.0}),
        (JobSpec(procs=2, cpus_per_task=3, mem_mib=5), {"CPU": 6.0, "memory": 5.0 * 2**20}),
    ],
)
def test_what_a_node_has_to_give(spec, bundle):
    assert bundle_of(from_spec(spec)) == bundle


@pytest.mark.parametrize(
    ("free", "count"),
    [
        ([], 1),  # one will do, and is waited for
        ([{"CPU": 1.0}, {"GPU": 8.0}], 1),
        ([{"CPU": 2.0}, {"CPU": 8.0}], 2),
        ([{"CPU": 2.0}] * 9, 3),
    ],
)
def test_as_many_nodes_as_are_free(free, count):
    assert choose_count(PLAN, free) == count


def test_what_is_waited_for():
    told = describe_wait(PLAN, [{"CPU": 8.0}, {"CPU": 1.0}, {}])
    assert told == "waiting for 1 nodes with CPU 2 each; 1 of 3 are so large"


def test_what_a_step_tells_is_read_again(tmp_path):
    assert read_standing(tmp_path) is None
    (tmp_path / NODES).write_text(standing("aa", "head").render())
    assert read_standing(tmp_path) == standing("aa", "head")
    (tmp_path / NODES).write_text('{"pid": 1')
    assert read_standing(tmp_path) is None
    assert standing("aa").names() == ["alpha"]
    assert standing("aa").names(living=False) == ["alpha", "beta"]


def test_a_step_that_is_gone_says_nothing_more():
    assert is_current(standing())
    assert not is_current(standing(pid=2**22 + 1))


def test_nodes_are_called_what_their_users_call_them():
    def entry(node_id, name, host):
        return {
            "NodeID": node_id,
            "NodeName": name,
            "NodeManagerAddress": "10.0.0.1",
            "NodeManagerHostname": host,
        }

    found = name_places(
        {
            0: entry("a" * 9, "10.0.0.1", "one"),
            1: entry("b" * 9, "mine", "one"),
            2: entry("c" * 9, "", "two"),
            3: entry("d" * 9, "10.0.0.1", "two"),
        }
    )
    assert [found[node].name for node in range(4)] == ["one", "mine", "two-cccccc", "two-dddddd"]


# --- the controller's side ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path, "train-abcd")
    run.claim_attempt()
    return run


def test_a_step_is_started_with_a_plan_and_secrets_stay_in_variables(run):
    request = from_spec(JobSpec(nodes=NodeCount(1, 2), procs=2))
    shell = FakeShell()
    starter = RayStarter(shell, {}, run=run, attempt=1, request=request)
    (started,) = starter.start([0, 1], ["python", "l", "agent"], {"ECHELON_KEY": "k"}, run.logs)
    (argv,) = shell.calls
    assert argv[2] == "ray-step"
    plan = parse_plan(argv[3])
    assert (plan.nodes, plan.low, plan.high, plan.bundle) == ([0, 1], 1, 2, {"CPU": 2.0})
    assert "ECHELON_KEY" not in argv[3]
    assert started.nodes == {0, 1}
    assert (starter.nodes, starter.host(1), starter.waits()) == (2, "node1", True)
    (run.attempt(1) / NODES).write_text(standing("aa", "bb").render())
    assert (starter.host(1), starter.waits()) == ("beta", False)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.9:6379", ["10.0.0.5", "10.1.0.5"]), ("", ["127.0.0.1", "10.1.0.5", "10.0.0.5"])],
)
def test_agents_reach_us_on_the_way_to_the_head(run, monkeypatch, address, expected):
    towards = {"10.0.0.9": "10.0.0.5"}
    monkeypatch.setattr("echelon.launch.addresses.address_towards", towards.__getitem__)
    monkeypatch.setattr("echelon.launch.addresses.host_addresses", lambda: ["10.1.0.5", "10.0.0.5"])
    environ = {"RAY_ADDRESS": address} if address else {}
    request = from_spec(JobSpec())
    starter = RayStarter(FakeShell(), environ, run=run, attempt=1, request=request)
    assert starter.candidates() == expected


def test_nodes_that_ray_has_lost_are_not_ours(tmp_path):
    allocation = RayAllocation(tmp_path)
    held = lambda: asyncio.run(allocation.held(["alpha", "beta", "node2"]))  # noqa: E731
    assert held() is None
    assert not asyncio.run(allocation.reaches_cluster())
    (tmp_path / NODES).write_text(standing("aa").render())
    assert held() == {"alpha"}
    assert asyncio.run(allocation.reaches_cluster())
    (tmp_path / NODES).write_text(standing("aa", pid=2**22 + 1).render())
    assert held() is None


def test_a_wish_to_cancel_is_a_stop_at_once(tmp_path):
    posted = []

    async def scenario():
        watching = asyncio.create_task(RayAllocation(tmp_path).watch(posted.append, None))
        await asyncio.sleep(0)
        (tmp_path / CANCELLED).touch()
        async with asyncio.timeout(10):
            await watching

    asyncio.run(scenario())
    ((stop),) = posted
    assert (stop.cause, stop.at_once) == ("cancelled", True)


def test_on_ray_somebody_else_submits_the_next_job(run):
    environ = {"ECHELON_ON_RAY": "train-abcd-1"}
    shell = FakeShell()
    choose = lambda mode: choose_succession(mode, run, shell, environ, environ, owns_job=False)  # noqa: E731
    succession = choose("auto")
    assert isinstance(succession, OthersSuccession)
    assert succession.mends == ("lost node",)
    assert asyncio.run(succession.conclude(wanted=True)) == "wanted"
    assert asyncio.run(succession.conclude(wanted=False)) == ""
    assert not isinstance(choose("never"), OthersSuccession)


def test_why_agents_did_not_come(tmp_path):
    log = tmp_path / "log"
    log.write_text("waiting for 2 nodes\nray: beta (10.0.0.2) does not see it\nnoise\n")
    assert read_reason(log) == "beta (10.0.0.2) does not see it"


# --- the step itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"), [("2.60.0", (2, 60)), ("3.0.0.dev0", (3, 0)), ("2.52rc1", (2,))]
)
def test_versions(text, parts):
    assert parse_version(text) == parts


def test_a_ray_that_is_too_old_is_named_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setattr("echelon.launch.raystep.version", lambda _: "2.9.3")
    with pytest.raises(StepError, match=r"ray 2.9.3 is too old, it takes 2.52: pip install"):
        load_ray()
