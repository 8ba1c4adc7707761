"""The driver of a run's nodes on Ray, with a Ray of the tests' own."""

import math
from types import SimpleNamespace

import pytest

from echelon.launch.backends.ray import driver as module
from echelon.launch.backends.ray.driver import Driver
from echelon.launch.backends.ray.orders import ORDERS, Order
from echelon.launch.backends.ray.plan import DriverPlan
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
def folder(tmp_path):
    run = RunDir.create(tmp_path, "train-abcd")
    run.claim_attempt()
    (run.attempt(1) / "owner").write_text("me")
    return run.attempt(1)


@pytest.fixture
def keep(ray, folder, monkeypatch):
    """Let a driver go once around for each moment, and do what is to happen in it."""
    modules = {
        "ray.util": ray,
        "ray.util.scheduling_strategies": SimpleNamespace(
            PlacementGroupSchedulingStrategy=lambda **asked: {
                "index": asked["placement_group_bundle_index"]
            }
        ),
        "ray._private.state": SimpleNamespace(
            available_resources_per_node=lambda: {one: {"CPU": 1.0} for one in ray.names}
        ),
    }
    monkeypatch.setattr(module.importlib, "import_module", lambda name: modules[name])
    monkeypatch.setattr(module, "LOOK_S", -1.0)
    plan = DriverPlan(
        run=str(folder.parents[1]),
        attempt=1,
        low=1,
        high=2,
        bundle={"CPU": 1.0},
        argv=["p", "l", "agent"],
    )

    def keep(*moments, dismissed=False):
        turns = iter(moments)

        def is_wanted():
            for moment in turns:
                moment()
                return True
            return False

        driver = Driver(ray, plan, {"A": "1"}, KEY, is_wanted)
        if dismissed:
            driver.be_dismissed(15, None)
        driver.keep()

    return keep


def say(ray, node, call, said):
    return lambda: ray.ready.__setitem__((node, call), said)


def nothing():
    pass


def test_agents_are_told_who_they_are_and_that_is_written_down(keep, folder, ray):
    keep(nothing)
    assert [actor.env["ECHELON_NODE"] for actor in ray.started] == ["0", "1"]
    assert {actor.stdin for actor in ray.started} == {KEY.hex().encode() + b"\n"}
    assert [actor.env["ECHELON_NODE_NAME"] for actor in ray.started] == ["aa", "bb"]
    assert read_status(folder).names() == ["aa", "bb"]


def test_a_node_where_no_agent_can_be_costs_only_itself(keep, folder, ray):
    keep(nothing, say(ray, 1, "start", "sees nothing"), say(ray, 0, "start", ""), nothing)
    places = read_status(folder).places
    assert {node: place.fault for node, place in places.items()} == {0: "", 1: "sees nothing"}
    assert [actor.killed for actor in ray.started] == [False, True]


def test_an_actor_that_ray_does_not_start_is_given_up_in_time(keep, folder, ray, monkeypatch):
    monkeypatch.setattr(module, "START_S", -1.0)
    keep(nothing, nothing)
    faults = {place.fault for place in read_status(folder).places.values()}
    assert faults == {"started no actor within -1 s"}


def test_a_node_that_is_lost_before_its_agent_came_is_replaced(keep, folder, ray):
    def lose():
        ray.ready[1, "start"] = RayError("the node is gone")
        ray.names["bb"], ray.bundles[1] = False, ""

    def move():
        ray.names["cc"], ray.bundles[1] = True, "cc"

    seen = []
    look = lambda: seen.append(read_status(folder).places[1])  # noqa: E731
    keep(nothing, lose, nothing, look, move, nothing, nothing)
    assert (seen[0].name, seen[0].here) == ("bb", False)
    assert [actor.env["ECHELON_NODE_NAME"] for actor in ray.started] == ["aa", "bb", "cc"]


def test_a_place_whose_actors_fail_again_and_again_is_given_up(keep, folder, ray):
    fail = say(ray, 1, "start", RayError("no\nit cannot"))
    keep(nothing, *[fail, nothing] * 4)
    assert read_status(folder).places[1].fault == "cannot start an actor: it cannot"
    assert len(ray.started) == 1 + 3


def order(folder, node, name="x", **variables):
    return Order(path=folder / ORDERS / f"{name}.json", node=node, variables=variables)


def test_an_agent_that_is_ordered_is_in_the_same_group_and_its_order_ends_with_it(
    keep, folder, ray
):
    again = order(folder, 1, ECHELON_REPLACES="77")
    keep(
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


def test_an_order_that_is_withdrawn_ends_its_agent(keep, folder, ray):
    again = order(folder, 1)
    keep(say(ray, 1, "start", ""), again.write, nothing, again.withdraw, nothing)
    assert [actor.killed for actor in ray.started] == [False, True, True]


def test_an_order_for_a_place_that_there_is_not_is_answered(keep, folder):
    wrong = order(folder, 7)
    keep(wrong.write, nothing)
    assert not wrong.path.exists()


def test_what_is_waited_for_is_told_until_there_are_nodes(keep, folder, ray, monkeypatch):
    monkeypatch.setattr(module, "TELL_S", -1.0)
    told = []
    look = lambda: told.append(read_status(folder).waits)  # noqa: E731
    ray.delay = 2
    keep(nothing, look, look)
    assert "waiting for 1 nodes with CPU 1 each" in told[0]
    assert told[-1] == ""


def test_a_driver_goes_when_it_is_dismissed_while_it_waits(keep, ray):
    ray.delay = math.inf
    keep(nothing, nothing, dismissed=True)
    assert ray.started == []


def test_a_driver_goes_when_its_controller_is_gone(keep, ray):
    keep()
    assert ray.started == []
