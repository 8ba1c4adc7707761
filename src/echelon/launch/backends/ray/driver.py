"""`ray-driver PLAN`: keeps a run's nodes on a Ray cluster, and brings up their agents.

A child of the controller, with the agents' variables as its own; of all our processes it alone
imports ray. The nodes are one placement group for the whole attempt, a bundle for each place, and
on each an actor is its agent's parent: when the actor goes, whatever the reason, the kernel ends
the agent, and its guard the ranks. When a node dies, Ray gives its bundle another as soon as there
is one: an agent that the controller calls back comes up there.
"""

import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from echelon.core.atomic_file import write_atomic
from echelon.launch.backends.base import CAUSE
from echelon.launch.backends.ray.host import make_host
from echelon.launch.backends.ray.orders import Order, read_orders
from echelon.launch.backends.ray.plan import Plan, choose_count, describe_wait, parse_plan
from echelon.launch.backends.ray.status import NODES, Place, Status, settle_places
from echelon.launch.backends.ray.version import SHOWN, is_too_old
from echelon.launch.protocol.rank_environment import NAME, NODE, receive_key, render_key
from echelon.run.journal import write_error

LOOK_S = 1.0
"""How often Ray is asked where our places are."""
TICK_S = 0.2
"""How often we look whether somebody wants something."""
_TELL_S = 5.0
"""After how long it is said what is waited for."""
_START_S = 60.0
"""How long Ray may take to start an actor on a node that it has given us."""
_TRIES = 3
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_INSTALL = "pip install 'ray[default]'"


class DriverError(Exception):
    """Why agents do not come, in a line."""


def main(arguments: list[str]) -> int:
    """Carry a plan out; the agents' variables are our own, and their key is on our input."""
    plan, environ = parse_plan(arguments[0]), dict(os.environ)
    key = receive_key(sys.stdin.buffer)
    # To stop a job, Ray sends this to all processes of it: for us the controller decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray = load_ray()
        connect(ray, plan, environ)
        environ.pop(_JOB_CONFIG, None)  # between Ray and us: of a rank's own Ray it would be part
        driver = Driver(ray, plan, environ, key)
        signal.signal(signal.SIGTERM, driver.be_dismissed)
        try:
            driver.keep()
        finally:
            ray.shutdown()
    except DriverError as error:
        write_error(f"{CAUSE}{error}")
        return 69
    return 0


def load_ray() -> ModuleType:
    """Import ray.

    Raises:
        DriverError: it is not there, or too old.
    """
    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise DriverError(f"the Python {sys.executable} has no ray: {_INSTALL}") from error
    if is_too_old(found):
        raise DriverError(f"ray {found} is too old, it takes {SHOWN}: {_INSTALL} --upgrade")
    return importlib.import_module("ray")


def connect(ray: ModuleType, plan: Plan, environ: Mapping[str, str]) -> None:
    """Join the Ray cluster as one of its drivers.

    Raises:
        DriverError: it does not answer, or is of another version.
    """
    if config := environ.get(_JOB_CONFIG):
        # Variables of the job's own would have Ray start a new worker for each actor.
        os.environ[_JOB_CONFIG] = json.dumps({**json.loads(config), "runtime_env": {}})
    try:
        ray.init(
            address=environ.get("RAY_ADDRESS", "auto"),
            namespace=f"echelon-{plan.group}",
            log_to_driver=False,
            logging_level="error",
        )
    except Exception as error:  # whatever it is, agents will not come
        said = " ".join(str(error).split()) or type(error).__name__
        raise DriverError(f"cannot join the Ray cluster: {said[:400]}") from error


@dataclass(slots=True, kw_only=True)
class _Slot:
    """A place's agent: wanted, on its way, or there."""

    order: Order | None = None
    """Who asked for it; nobody for the first."""
    actor: Any = None
    """None as long as its place has no node."""
    reference: Any = None
    """What the actor is at: it starts the agent, and then waits for its end."""
    due_s: float = math.inf
    """When the agent has to be started."""
    started: bool = False
    tries: int = 0


class Driver:
    """See the module."""

    def __init__(self, ray: ModuleType, plan: Plan, environ: Mapping[str, str], key: bytes) -> None:
        self._ray, self._plan, self._environ, self._key = ray, plan, environ, key
        self._util: Any = importlib.import_module("ray.util")
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._controller = os.getppid()
        self._dismissed = False
        self._group: Any = None
        self._slots: dict[int, _Slot] = {}
        self._orders: set[str] = set()
        """Names of those that were taken."""
        self._status = Status(pid=os.getpid())
        self._looked_s = -math.inf
        owner = plan.folder / "owner"
        self._mark = str(owner), owner.read_text()

    def be_dismissed(self, _number: int, _frame: FrameType | None) -> None:
        """Take it that no more agents are wanted: those that are here are about to go."""
        self._dismissed = True

    def keep(self) -> None:
        """Have nodes, and agents on them, for as long as the controller wants them."""
        if not self._reserve():
            return
        self._look()
        self._slots = {node: _Slot() for node in self._status.places}
        while os.getppid() == self._controller and (self._slots or not self._dismissed):
            self._take_orders()
            self._send()
            self._hear()
            if time.monotonic() - self._looked_s > LOOK_S:
                self._look()

    # --- nodes ----------------------------------------------------------------------------------

    def _reserve(self) -> bool:
        """Have as many different nodes as there are, or wait for the fewest that will do."""
        plan = self._plan
        count = choose_count(plan, self._free())
        bundles = [dict(plan.bundle)] * count
        self._group = self._util.placement_group(bundles, strategy="STRICT_SPREAD", name=plan.group)
        told_s = time.monotonic()
        while not self._group.wait(timeout_seconds=TICK_S):
            if os.getppid() != self._controller or self._dismissed:
                return False
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                total = [entry["Resources"] for entry in self._ray.nodes() if entry["Alive"]]
                self._tell(replace(self._status, waits=describe_wait(plan, total)))
        return True

    def _free(self) -> list[Mapping[str, float]]:
        """Return what living nodes have left; all they have, where this Ray does not tell."""
        try:
            state = importlib.import_module("ray._private.state")
            return list(state.available_resources_per_node().values())
        except (ImportError, AttributeError):
            return [entry["Resources"] for entry in self._ray.nodes() if entry["Alive"]]

    def _look(self) -> None:
        """See which nodes our places have now."""
        table = self._util.placement_group_table(self._group)["bundles_to_node_id"]
        bundles = {node: str(table.get(node) or "") for node in range(self._group.bundle_count)}
        entries = {entry["NodeID"]: entry for entry in self._ray.nodes()}
        places = settle_places(bundles, entries, self._status.places)
        self._tell(Status(pid=os.getpid(), places=places))
        self._looked_s = time.monotonic()

    def _tell(self, status: Status) -> None:
        """Write down how it is, when that has changed."""
        if status != self._status:
            self._status = status
            write_atomic(self._plan.folder / NODES, status.render())

    # --- agents ---------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        """Make a post of each new order, and give up those that are no longer wanted."""
        orders = {order.path.name: order for order in read_orders(self._plan.folder)}
        for node, post in list(self._slots.items()):
            given_up = post.order and post.order.path.name not in orders
            if given_up or (self._dismissed and not post.started):
                self._end(node)
        for name in [name for name in orders if name not in self._orders]:
            self._orders.add(name)
            order = orders[name]
            self._end(order.node)  # an agent that is only stopped, say
            if order.node in self._status.places and not self._dismissed:
                self._slots[order.node] = _Slot(order=order)
            else:
                order.withdraw()

    def _send(self) -> None:
        """Start agents at places that have a node."""
        for node, post in self._slots.items():
            place = self._status.places[node]
            if post.actor is None and place.here:
                post.actor = self._start_actor(node)
                post.reference = self._start_agent(node, post, place)
                post.due_s = time.monotonic() + _START_S

    def _start_actor(self, node: int) -> Any:
        bundle = dict(self._plan.bundle)
        strategy = self._strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=node
        )
        actor = self._ray.remote(make_host()).options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory", 0),
            max_restarts=0,
            scheduling_strategy=strategy,
        )
        return actor.remote()

    def _start_agent(self, node: int, post: _Slot, place: Place) -> Any:
        plan = self._plan
        own = {**self._environ, NODE: str(node), NAME: place.name}
        more = post.order.variables if post.order else {}
        log = str(plan.folder / f"agent-{node}.log")
        return post.actor.start.remote(
            node=place.id,
            mark=self._mark,
            argv=list(plan.argv),
            env={**own, **more},
            stdin=render_key(self._key),
            folder=str(Path.cwd()),
            log=log,
        )

    def _hear(self) -> None:
        """Wait a moment for what actors have to say."""
        waits = {post.reference: node for node, post in self._slots.items() if post.reference}
        if not waits:
            time.sleep(TICK_S)
            return
        done, _ = self._ray.wait(list(waits), timeout=TICK_S)
        for reference in done:
            self._hear_one(waits[reference])
        for node, post in list(self._slots.items()):
            if time.monotonic() > post.due_s:
                self._fail(node, f"has started no actor within {_START_S:g} s")

    def _hear_one(self, node: int) -> None:
        post, name = self._slots[node], self._status.places[node].name
        try:
            said = self._ray.get(post.reference)
        except self._ray.exceptions.RayError as error:
            self._lose_actor(node, str(error).strip().splitlines() or [type(error).__name__])
            return
        if post.started:
            code, words = said
            if code:
                write_error(f"{name}: its agent ended with code {code}: {words}")
            self._end(node)
        elif said:
            self._fail(node, said)
        else:
            post.started, post.due_s = True, math.inf
            post.reference = post.actor.wait.remote()

    def _lose_actor(self, node: int, said: list[str]) -> None:
        """Try again where the agent was not there yet: mostly its node is gone, and another comes.

        For one that was, the controller calls.
        """
        post, name = self._slots[node], self._status.places[node].name
        write_error(f"{name}: its actor is gone: {said[-1]}")
        if post.started:
            self._end(node)
        elif post.tries + 1 < _TRIES:
            self._slots[node] = _Slot(order=post.order, tries=post.tries + 1)
            self._looked_s = -math.inf
        else:
            self._fail(node, f"cannot start an actor: {said[-1]}")

    def _fail(self, node: int, fault: str) -> None:
        """Do without an agent, and say why."""
        place = self._status.places[node]
        write_error(f"{place.name} ({place.address}) {fault}")
        if self._slots[node].order is None:
            places = {**self._status.places, node: replace(place, fault=fault)}
            self._tell(replace(self._status, places=places))
        self._end(node)

    def _end(self, node: int) -> None:
        if post := self._slots.pop(node, None):
            if post.actor is not None:
                self._ray.kill(post.actor)
            if post.order:
                post.order.withdraw()
