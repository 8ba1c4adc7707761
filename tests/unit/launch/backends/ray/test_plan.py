"""Plans for Ray, what its driver tells, and what a controller makes of that."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import echelon
from echelon.core.shell import FakeShell
from echelon.core.waiting import wait_until
from echelon.launch.backends.base import AgentCommand, AttemptContext
from echelon.launch.backends.ray.backend import RayAllocation, RayStarter
from echelon.launch.backends.ray.driver import DriverError, load_ray
from echelon.launch.backends.ray.orders import read_orders
from echelon.launch.backends.ray.plan import (
    DriverPlan,
    bundle_of,
    choose_count,
    describe_wait,
    parse_plan,
)
from echelon.launch.backends.ray.status import (
    CANCELLED,
    NODES,
    NodePlace,
    Status,
    StatusReader,
    is_current,
    read_status,
    settle_places,
)
from echelon.launch.backends.ray.version import SHOWN, is_too_old
from echelon.launch.pool.agent_launcher import read_reason
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount

PLAN = DriverPlan(
    run="/runs/train-abcd",
    attempt=2,
    low=1,
    high=3,
    bundle={"CPU": 2.0},
    argv=["python", "launcher", "agent"],
)
PLACES = {
    0: {"id": "aa", "name": "alpha", "address": "10.0.0.1"},
    1: {"id": "bb", "name": "beta", "address": "10.0.0.2"},
}
GONE = 2**22 + 1
"""No process has this pid."""


def status(*here, pid=None, waits=""):
    places = {node: NodePlace(**{**PLACES[node], "here": node in here}) for node in PLACES}
    return Status(pid=pid or os.getpid(), places={} if waits else places, waits=waits)


def context(run, request):
    return AttemptContext(
        run=run, number=1, request=request, owns_job=False, environ={}, script=b""
    )


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
        (
            JobSpec(procs=2, cpus_per_task=3, mem_per_cpu_mib=5),
            {"CPU": 6.0, "memory": 30.0 * 2**20},
        ),
        (
            JobSpec(gpus=2, mem_per_gpu_mib=5),
            {"CPU": 2.0, "GPU": 2.0, "memory": 10.0 * 2**20},
        ),
    ],
)
def test_what_a_node_has_to_give(spec, bundle):
    assert bundle_of(spec) == bundle


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


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([{"CPU": 1.0}, {}], "0 of 2 nodes in the Ray cluster have that"),
        (
            [{"CPU": 8.0}, {"CPU": 1.0}],
            "1 of 2 nodes in the Ray cluster has that, but not all are free",
        ),
    ],
)
def test_what_is_waited_for(nodes, told):
    assert describe_wait(PLAN, nodes) == f"waiting for 1 nodes with CPU 2 each; {told}"


def test_what_a_driver_tells_is_read_again(tmp_path):
    assert read_status(tmp_path) is None
    (tmp_path / NODES).write_text(status(0).render())
    assert read_status(tmp_path) == status(0)
    (tmp_path / NODES).write_text('{"pid": 1')
    assert read_status(tmp_path) is None
    assert status(0).names() == ["alpha", "beta"]


def test_a_driver_that_is_gone_says_nothing_more():
    assert is_current(status())
    assert not is_current(status(pid=GONE))


def test_whoever_asks_of_many_nodes_reads_once(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr("echelon.launch.backends.ray.status.read_status", reads.append)
    outpost = StatusReader(tmp_path)
    for _ in range(100):
        outpost.read()
    assert len(reads) == 1


def entry(name, host, *, alive=True):
    return {
        "Alive": alive,
        "NodeName": name,
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerHostname": host,
    }


def test_nodes_are_called_what_their_users_call_them():
    entries = {
        "a" * 9: entry("10.0.0.1", "one"),
        "b" * 9: entry("mine", "one"),
        "c" * 9: entry("", "two"),
        "d" * 9: entry("10.0.0.1", "two"),
    }
    found = settle_places(dict(enumerate(entries)), entries, {})
    assert [found[node].name for node in range(4)] == ["one", "mine", "two-cccccc", "two-dddddd"]


def test_a_place_keeps_its_name_with_its_node_and_gets_another_with_another():
    entries = {"a" * 9: entry("", "one"), "b" * 9: entry("", "two"), "c" * 9: entry("", "one")}
    first = settle_places({0: "a" * 9, 1: "b" * 9}, entries, {})
    assert [first[node].name for node in range(2)] == ["one", "two"]
    entries["b" * 9] = entry("", "two", alive=False)
    lost = settle_places({0: "a" * 9, 1: "b" * 9}, entries, first)
    assert lost[0] == first[0]
    assert (lost[1].name, lost[1].here) == ("two", False)
    assert settle_places({0: "a" * 9, 1: ""}, entries, first) == lost  # Ray looks for another
    moved = settle_places({0: "a" * 9, 1: "c" * 9}, entries, lost)
    assert moved[0] == first[0]
    assert (moved[1].name, moved[1].here) == ("one-cccccc", True)


# --- the controller's side ----------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path, "train-abcd")
    run.claim_attempt()
    return run


def test_a_driver_is_started_with_a_plan_and_the_key_is_in_neither(run):
    request = JobSpec(nodes=NodeCount(1, 3), procs=2)
    shell = FakeShell()
    starter = RayStarter(shell, {}, context(run, request))
    key = b"k" * 32
    command = AgentCommand(argv=["agent"], env={}, logs=run.logs, key=key)
    start = lambda nodes: starter.start(nodes, command)  # noqa: E731
    (driver,) = start([0, 1, 2])
    assert (driver.nodes, driver.dismissal) == ({0, 1, 2}, signal.SIGTERM)
    (called,) = start([1])
    assert (called.nodes, called.dismissal) == ({1}, 0)
    first, second = shell.calls
    assert first[-2] == "ray-driver"
    plan = parse_plan(first[-1])
    assert (plan.low, plan.high, plan.bundle) == (1, 3, {"CPU": 2.0})
    assert second[-4:] == ("ray-call", str(run.attempt(1)), "1", str(driver.pid))
    assert key.hex() not in "".join((*first, *second))


def test_what_a_controller_learns_of_nodes_that_have_not_come(run, monkeypatch):
    monkeypatch.setattr("echelon.launch.backends.ray.status.FRESH_S", -1.0)
    request = JobSpec(nodes=NodeCount(1, 3))
    starter = RayStarter(FakeShell(), {}, context(run, request))
    file = run.attempt(1) / NODES
    assert (starter.host(1), starter.outlook().waits) == ("node1", "")
    file.write_text(status(waits="waiting").render())
    assert (starter.host(1), starter.outlook().waits) == ("node1", "waiting")
    file.write_text(status(0).render())
    seen = starter.outlook()
    assert (starter.host(1), seen.waits, seen.absent, seen.lost) == ("beta", "", {2}, {1})
    bad = Status(pid=1, places={0: NodePlace(**PLACES[0], fault="sees nothing")})
    file.write_text(bad.render())
    assert starter.outlook().faults == {0: "sees nothing"}


def call(folder, driver, **environ):
    """Ask a driver for the agent of place 3, as a controller does."""
    launcher = Path(echelon.__file__).parents[1]
    argv = [sys.executable, "-m", "echelon.launch", "ray-call", str(folder), "3", str(driver)]
    environ = {**os.environ, "PYTHONPATH": str(launcher), **environ}
    return subprocess.Popen(argv, env=environ, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("given_up", [False, True])
def test_an_order_is_there_as_long_as_its_agent_is_wanted(tmp_path, given_up):
    with call(tmp_path, os.getpid(), ECHELON_REPLACES="77", ECHELON_CONTROLLER="secret") as caller:
        assert wait_until(lambda: read_orders(tmp_path), timeout_s=60)
        (order,) = read_orders(tmp_path)
        assert (order.node, order.variables) == (3, {"ECHELON_REPLACES": "77"})
        assert "secret" not in order.path.read_text()
        if given_up:
            caller.terminate()
        else:
            order.withdraw()  # as a driver does when its agent has gone
        assert caller.wait(60) == (143 if given_up else 0)
    assert read_orders(tmp_path) == []


def test_without_a_keeper_nobody_waits_for_an_agent(tmp_path):
    with call(tmp_path, GONE) as caller:
        assert caller.wait(60) == 69
        assert "Ray driver of the run is not running" in caller.stderr.read()
    assert read_orders(tmp_path) == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.9:6379", ["10.0.0.5", "10.1.0.5"]), ("", ["127.0.0.1", "10.1.0.5", "10.0.0.5"])],
)
def test_agents_reach_us_on_the_way_to_the_head(run, monkeypatch, address, expected):
    towards = {"10.0.0.9": "10.0.0.5"}
    monkeypatch.setattr("echelon.core.addresses.address_towards", towards.__getitem__)
    monkeypatch.setattr("echelon.core.addresses.host_addresses", lambda: ["10.1.0.5", "10.0.0.5"])
    environ = {"RAY_ADDRESS": address} if address else {}
    request = JobSpec()
    starter = RayStarter(FakeShell(), environ, context(run, request))
    assert starter.candidates() == expected


def test_places_are_ours_as_long_as_somebody_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setattr("echelon.launch.backends.ray.status.FRESH_S", -1.0)
    allocation = RayAllocation(tmp_path)
    held = lambda: asyncio.run(allocation.held(["alpha", "beta"]))  # noqa: E731
    assert held() is None
    assert not asyncio.run(allocation.reaches_cluster())
    (tmp_path / NODES).write_text(status(waits="waiting").render())
    assert held() is None
    (tmp_path / NODES).write_text(status(0).render())
    assert held() == {"alpha", "beta"}  # Ray looks for another node for the second
    assert asyncio.run(allocation.reaches_cluster())
    (tmp_path / NODES).write_text(status(0, pid=GONE).render())
    assert held() == frozenset()
    assert not asyncio.run(allocation.reaches_cluster())


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


def test_why_agents_did_not_come(tmp_path):
    log = tmp_path / "log"
    log.write_text("noise\nno agents: cannot join the Ray cluster\nnoise\n")
    assert read_reason(log) == "cannot join the Ray cluster"


# --- the driver itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["2.56.0", "2.60.0", "2.60rc1", "3.0.0.dev0"])
def test_a_ray_that_will_do(text):
    assert not is_too_old(text)


@pytest.mark.parametrize("text", ["2.9.3", "2.55.1", "2.52rc1", "1.60", "unknown", ""])
def test_a_ray_that_will_not_do(text):
    assert is_too_old(text)


def test_what_is_installed_and_documented_is_the_same():
    root = Path(__file__).parents[5]
    assert f'"ray[default]>={SHOWN}"' in (root / "pyproject.toml").read_text()
    assert f"Ray {SHOWN} or newer" in (root / "docs" / "ray.md").read_text()


def test_a_ray_that_is_too_old_is_named_with_the_command_that_mends_it(monkeypatch):
    monkeypatch.setattr("echelon.launch.backends.ray.driver.version", lambda _: "2.9.3")
    with pytest.raises(DriverError, match=r"ray 2.9.3 is too old .need 2.56 or newer"):
        load_ray()
