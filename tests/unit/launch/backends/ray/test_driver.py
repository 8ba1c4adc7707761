"""The driver of a run's nodes on Ray, with a Ray of the tests' own."""

import math
import os
import time
from types import SimpleNamespace

import pytest

from echelon.launch.backends.ray import driver as driver_module
from echelon.launch.backends.ray.driver import Driver
from echelon.launch.backends.ray.orders import ORDERS, Order
from echelon.launch.backends.ray.plan import Plan
from echelon.launch.backends.ray.status import read_status
from echelon.run.directory import RunDir

KEY = b"k" * 32


class RayError(Exception):
    pass


class Actor:
    """Does what the test says: `starts` and `ends` are what its calls return, or raise."""

    def __init__(self, ray, node):
        self.node, self.killed, self.env = node, False, {}
        self.start = SimpleNamespace(remote=lambda **said: self._begin(ray, said))
        self.wait = SimpleNamespace(remote=lambda: (self, "end"))

    def _begin(self, ray, said):
        self.env, self.stdin = said["env"], said["stdin"]
        ray.started.append(self)
        return self, "start"


class FakeRay:
    """Two nodes, and what else a test gives it."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.names = {"aa": True, "bb": True}
        self.bundles = {0: "aa", 1: "bb"}
        self.ready, self.started = {}, []
        self.delay = 0

    def nodes(self):
        return [
            {
                "NodeID": one,
                "Alive": alive,
                "NodeName": one,
                "NodeManagerAddress": f"10.0.0.{number}",
                "NodeManagerHostname": one,
                "Resources": {"CPU": 1.0},
            }
            for number, (one, alive) in enumerate(self.names.items())
        ]

    # the placement group, and its module

    bundle_count = 2

    def wait(self, references=None, **_):
        if references is None:
            self.delay -= 1
            return self.delay < 0
        done = [one for one in references if (one[0].node, one[1]) in self.ready]
        return done, [one for one in references if one not in done]

    def placement_group(self, bundles, **_):
        self.bundle_count = len(bundles)
        return self

    def placement_group_table(self, _):
        return {"bundles_to_node_id": self.bundles}

    # actors

    def remote(self, _):
        return self

    def options(self, **asked):
        self.asked = asked
        return SimpleNamespace(remote=lambda: Actor(self, asked["scheduling_strategy"]["index"]))

    def get(self, reference):
        said = self.ready.pop((reference[0].node, reference[1]))
        if isinstance(said, Exception):
            raise said
        return said

    def kill(self, actor):
        actor.killed = True


@pytest.fixture
def ray():
    return FakeRay()


@pytest.fixture
def driver(ray, tmp_path, monkeypatch):
    run = RunDir.create(tmp_path, "train-abcd")
    run.claim_attempt()
    (run.attempt(1) / "owner").write_text("me")
    strategies = SimpleNamespace(
        PlacementGroupSchedulingStrategy=lambda **asked: {
            "index": asked["placement_group_bundle_index"]
        }
    )
    modules = {"ray.util": ray, "ray.util.scheduling_strategies": strategies}
    monkeypatch.setattr(driver_module.importlib, "import_module", lambda name: modules[name])
    plan = Plan(
        run=str(run.path), attempt=1, low=1, high=2, bundle={"CPU": 1.0}, argv=["p", "l", "agent"]
    )
    monkeypatch.setattr(Driver, "_free", lambda _: [{"CPU": 1.0}] * 2)
    monkeypatch.setattr(driver_module, "LOOK_S", -1.0)
    return Driver(ray, plan, {"A": "1"}, KEY)


def keep(driver, *moments):
    """Let the driver go once around for each moment, and do what is to happen in it."""
    turns = iter(moments)

    def tick():
        try:
            next(turns)()
        except StopIteration:
            driver.be_dismissed(15, None)
            driver._slots.clear()
        Driver._take_orders(driver)

    driver._take_orders = tick
    driver.keep()


def folder(driver):
    return driver._plan.folder


def say(ray, node, call, said):
    return lambda: ray.ready.__setitem__((node, call), said)


def nothing():
    pass


def test_agents_are_told_who_they_are_and_that_is_written_down(driver, ray):
    keep(driver, nothing)
    assert [actor.env["ECHELON_NODE"] for actor in ray.started] == ["0", "1"]
    assert {actor.stdin for actor in ray.started} == {KEY.hex().encode() + b"\n"}
    assert [actor.env["ECHELON_NODE_NAME"] for actor in ray.started] == ["aa", "bb"]
    assert read_status(folder(driver)).names() == ["aa", "bb"]


def test_a_node_where_no_agent_can_be_costs_only_itself(driver, ray):
    keep(driver, nothing, say(ray, 1, "start", "sees nothing"), say(ray, 0, "start", ""), nothing)
    places = read_status(folder(driver)).places
    assert {node: place.fault for node, place in places.items()} == {0: "", 1: "sees nothing"}
    assert [actor.killed for actor in ray.started] == [False, True]


def test_an_actor_that_ray_does_not_start_is_given_up_in_time(driver, ray, monkeypatch):
    monkeypatch.setattr(driver_module, "_START_S", -1.0)
    keep(driver, nothing, nothing)
    faults = {place.fault for place in read_status(folder(driver)).places.values()}
    assert faults == {"has started no actor within -1 s"}


def test_a_node_that_is_lost_before_its_agent_came_is_replaced(driver, ray):
    def lose():
        ray.ready[1, "start"] = RayError("the node is gone")
        ray.names["bb"], ray.bundles[1] = False, ""

    def move():
        ray.names["cc"], ray.bundles[1] = True, "cc"

    seen = []
    look = lambda: seen.append(read_status(folder(driver)).places[1])  # noqa: E731
    keep(driver, nothing, lose, nothing, look, move, nothing, nothing)
    assert (seen[0].name, seen[0].here) == ("bb", False)
    assert [actor.env["ECHELON_NODE_NAME"] for actor in ray.started] == ["aa", "bb", "cc"]


def test_a_place_whose_actors_fail_again_and_again_is_given_up(driver, ray):
    fail = say(ray, 1, "start", RayError("no\nit cannot"))
    keep(driver, nothing, *[fail, nothing] * 4)
    assert read_status(folder(driver)).places[1].fault == "cannot start an actor: it cannot"
    assert len(ray.started) == 1 + 3


def order(driver, node, name="x", **variables):
    return Order(path=folder(driver) / ORDERS / f"{name}.json", node=node, variables=variables)


def test_an_agent_that_is_ordered_comes_in_the_same_group_and_the_order_ends_with_it(driver, ray):
    again = order(driver, 1, ECHELON_REPLACES="77")
    keep(
        driver,
        say(ray, 1, "start", ""),
        say(ray, 1, "end", (-9, "killed")),
        again.write,
        say(ray, 1, "start", ""),
        again.path.stat,
        say(ray, 1, "end", (0, "")),
        nothing,
    )
    assert [actor.node for actor in ray.started] == [0, 1, 1]
    assert ray.started[-1].env["ECHELON_REPLACES"] == "77"
    assert "ECHELON_REPLACES" not in ray.started[1].env
    assert not again.path.exists()


def test_an_order_that_is_withdrawn_ends_its_agent(driver, ray):
    again = order(driver, 1)
    keep(driver, say(ray, 1, "start", ""), again.write, nothing, again.withdraw, nothing)
    assert [actor.killed for actor in ray.started] == [False, True, True]


def test_an_order_for_a_place_that_there_is_not_is_answered(driver):
    wrong = order(driver, 7)
    keep(driver, wrong.write, nothing)
    assert not wrong.path.exists()


def test_what_is_waited_for_is_told_until_there_are_nodes(driver, ray, monkeypatch):
    monkeypatch.setattr(driver_module, "_TELL_S", -1.0)
    told = []
    monkeypatch.setattr(
        Driver, "_tell", lambda self, one: (told.append(one), setattr(self, "_status", one))
    )
    ray.delay = 2
    keep(driver, nothing)
    assert "waiting for 1 nodes with CPU 1 each" in told[0].waits
    assert told[-1].waits == ""


@pytest.mark.parametrize("moment", ["waits", "runs"])
def test_a_keeper_goes_when_it_is_dismissed_or_its_controller_is_gone(driver, ray, moment):
    ray.delay = math.inf if moment == "waits" else 0
    if moment == "waits":
        driver.be_dismissed(15, None)
    else:
        driver._controller = os.getppid() + 1
    began_s = time.monotonic()
    driver.keep()
    assert time.monotonic() - began_s < 10
