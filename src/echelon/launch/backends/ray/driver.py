"""`ray-driver PLAN`: reserves a run's nodes on a Ray cluster, and starts their agents.

It is a child of the controller, has the agents' variables, and is the only process of Echelon that
imports ray. The nodes are one placement group for the whole attempt, with a bundle for each place.
On each node an actor is the parent of the agent: when the actor exits, for whatever reason, the
kernel ends the agent, and its guard ends the ranks. When a node dies, Ray moves its bundle to
another node as soon as there is one. An agent that the controller restarts then starts there.
"""

import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from echelon.core.atomic_file import write_atomic
from echelon.launch.backends.base import CAUSE
from echelon.launch.backends.ray.host import make_host
from echelon.launch.backends.ray.orders import Order, read_orders
from echelon.launch.backends.ray.plan import DriverPlan, choose_count, describe_wait, parse_plan
from echelon.launch.backends.ray.status import NODES, NodePlace, Status, settle_places
from echelon.launch.backends.ray.version import SHOWN, is_too_old
from echelon.launch.protocol.rank_environment import NAME, NODE, receive_key, render_key
from echelon.run.journal import write_error

LOOK_S = 1.0
"""How often Ray is asked for the nodes of our places."""
TICK_S = 0.2
"""How often we check for orders."""
TELL_S = 5.0
"""Time after which we report what we wait for."""
START_S = 60.0
"""How long Ray may take to start an actor on an assigned node."""
_TRIES = 3
_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_INSTALL = "pip install 'ray[default]'"


class DriverError(Exception):
    """Why agents do not start, in one line."""


def main(arguments: list[str]) -> int:
    """Carry out a plan; the agents get our variables, and the key that is on our input."""
    plan, environ, controller = parse_plan(arguments[0]), dict(os.environ), os.getppid()
    key = receive_key(sys.stdin.buffer)
    # Ray sends this to all processes of a job to stop it, but the controller decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ray = load_ray()
        connect(ray, plan, environ)
        environ.pop(_JOB_CONFIG, None)  # it would affect a rank's own use of Ray
        driver = Driver(ray, plan, environ, key, lambda: os.getppid() == controller)
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
        DriverError: it is not installed, or too old.
    """
    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise DriverError(f"ray is not installed for {sys.executable}: {_INSTALL}") from error
    if is_too_old(found):
        raise DriverError(f"ray {found} is too old (need {SHOWN} or newer): {_INSTALL} --upgrade")
    return importlib.import_module("ray")


def connect(ray: ModuleType, plan: DriverPlan, environ: Mapping[str, str]) -> None:
    """Join the Ray cluster as one of its drivers.

    Raises:
        DriverError: it does not answer, or has another version.
    """
    if config := environ.get(_JOB_CONFIG):
        # With variables of the job, Ray would start a new worker for each actor.
        os.environ[_JOB_CONFIG] = json.dumps({**json.loads(config), "runtime_env": {}})
    try:
        ray.init(
            address=environ.get("RAY_ADDRESS", "auto"),
            namespace=f"echelon-{plan.group}",
            log_to_driver=False,
            logging_level="error",
        )
    except Exception as error:  # whatever it is, agents cannot start
        text = " ".join(str(error).split()) or type(error).__name__
        raise DriverError(f"cannot join the Ray cluster: {text[:400]}") from error


@dataclass(slots=True, kw_only=True)
class _Slot:
    """A place's agent: ordered, starting, or running."""

    order: Order | None = None
    """The order for it; None for the first agent."""
    actor: Any = None
    """None while its place has no node."""
    reference: Any = None
    """The actor's current call: it starts the agent, and then waits for its exit."""
    due_s: float = math.inf
    """Deadline for the start of the agent."""
    started: bool = False
    tries: int = 0


class Driver:
    """See the module."""

    def __init__(
        self,
        ray: ModuleType,
        plan: DriverPlan,
        environ: Mapping[str, str],
        key: bytes,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Prepare it.

        Args:
            ray: the module.
            plan: what to do.
            environ: the agents' variables.
            key: what agents need to connect.
            is_wanted: tells whether the controller is still there; asked in each round.
        """
        self._ray, self._plan, self._environ, self._key = ray, plan, environ, key
        self._is_wanted = is_wanted
        self._util: Any = importlib.import_module("ray.util")
        self._strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        self._dismissed = False
        self._group: Any = None
        self._slots: dict[int, _Slot] = {}
        self._orders: set[str] = set()
        """Names of orders that were taken."""
        self._status = Status(pid=os.getpid())
        self._looked_s = -math.inf
        owner = plan.folder / "owner"
        self._mark = str(owner), owner.read_text()

    def be_dismissed(self, _number: int, _frame: FrameType | None) -> None:
        """Note that no more agents are wanted; those that run are about to exit."""
        self._dismissed = True

    def keep(self) -> None:
        """Hold nodes, and agents on them, as long as the controller wants them."""
        if not self._reserve():
            return
        self._look()
        self._slots = {node: _Slot() for node in self._status.places}
        while self._is_wanted() and (self._slots or not self._dismissed):
            self._take_orders()
            self._send()
            self._hear()
            if time.monotonic() - self._looked_s > LOOK_S:
                self._look()

    # --- nodes ----------------------------------------------------------------------------------

    def _reserve(self) -> bool:
        """Reserve all free nodes, or wait for the minimum; tell whether there are nodes."""
        plan = self._plan
        count = choose_count(plan, self._free())
        bundles = [dict(plan.bundle)] * count
        self._group = self._util.placement_group(bundles, strategy="STRICT_SPREAD", name=plan.group)
        told_s = time.monotonic()
        while not self._group.wait(timeout_seconds=TICK_S):
            if not self._is_wanted() or self._dismissed:
                return False
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                total = [entry["Resources"] for entry in self._ray.nodes() if entry["Alive"]]
                self._tell(replace(self._status, waits=describe_wait(plan, total)))
        return True

    def _free(self) -> list[Mapping[str, float]]:
        """Return the free resources of live nodes; all resources if this Ray does not tell."""
        try:
            state = importlib.import_module("ray._private.state")
            return list(state.available_resources_per_node().values())
        except (ImportError, AttributeError):
            return [entry["Resources"] for entry in self._ray.nodes() if entry["Alive"]]

    def _look(self) -> None:
        """Update the nodes of our places."""
        table = self._util.placement_group_table(self._group)["bundles_to_node_id"]
        bundles = {node: str(table.get(node) or "") for node in range(self._group.bundle_count)}
        entries = {entry["NodeID"]: entry for entry in self._ray.nodes()}
        places = settle_places(bundles, entries, self._status.places)
        self._tell(Status(pid=os.getpid(), places=places))
        self._looked_s = time.monotonic()

    def _tell(self, status: Status) -> None:
        """Write the status if it has changed."""
        if status != self._status:
            self._status = status
            write_atomic(self._plan.folder / NODES, status.render())

    # --- agents ---------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        """Take new orders, and end agents that are no longer wanted."""
        orders = {order.path.name: order for order in read_orders(self._plan.folder)}
        for node, slot in list(self._slots.items()):
            given_up = slot.order and slot.order.path.name not in orders
            if given_up or (self._dismissed and not slot.started):
                self._end(node)
        for name in [name for name in orders if name not in self._orders]:
            self._orders.add(name)
            order = orders[name]
            self._end(order.node)  # an agent that was only suspended, say
            if order.node in self._status.places and not self._dismissed:
                self._slots[order.node] = _Slot(order=order)
            else:
                order.withdraw()

    def _send(self) -> None:
        """Start agents on places that have a node."""
        for node, slot in self._slots.items():
            place = self._status.places[node]
            if slot.actor is None and place.here:
                slot.actor = self._start_actor(node)
                slot.reference = self._start_agent(node, slot, place)
                slot.due_s = time.monotonic() + START_S

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

    def _start_agent(self, node: int, slot: _Slot, place: NodePlace) -> Any:
        plan = self._plan
        own = {**self._environ, NODE: str(node), NAME: place.name}
        more = slot.order.variables if slot.order else {}
        log = str(plan.folder / f"agent-{node}.log")
        return slot.actor.start.remote(
            node=place.id,
            mark=self._mark,
            argv=list(plan.argv),
            env={**own, **more},
            stdin=render_key(self._key),
            folder=str(Path.cwd()),
            log=log,
        )

    def _hear(self) -> None:
        """Wait a moment for actors to answer."""
        waits = {slot.reference: node for node, slot in self._slots.items() if slot.reference}
        if not waits:
            time.sleep(TICK_S)
            return
        done, _ = self._ray.wait(list(waits), timeout=TICK_S)
        for reference in done:
            self._take_answer(waits[reference])
        for node, slot in list(self._slots.items()):
            if time.monotonic() > slot.due_s:
                self._fail(node, f"started no actor within {START_S:g} s")

    def _take_answer(self, node: int) -> None:
        slot, name = self._slots[node], self._status.places[node].name
        try:
            answer = self._ray.get(slot.reference)
        except self._ray.exceptions.RayError as error:
            self._lose_actor(node, str(error).strip().splitlines() or [type(error).__name__])
            return
        if slot.started:
            code, words = answer
            if code:
                write_error(f"{name}: the agent exited with code {code}: {words}")
            self._end(node)
        elif answer:
            self._fail(node, answer)
        else:
            slot.started, slot.due_s = True, math.inf
            slot.reference = slot.actor.wait.remote()

    def _lose_actor(self, node: int, error_lines: list[str]) -> None:
        """Try again if the agent did not run yet: usually its node was lost, and Ray finds another.

        The controller restarts an agent that did run.
        """
        slot, name = self._slots[node], self._status.places[node].name
        write_error(f"{name}: the actor was lost: {error_lines[-1]}")
        if slot.started:
            self._end(node)
        elif slot.tries + 1 < _TRIES:
            self._slots[node] = _Slot(order=slot.order, tries=slot.tries + 1)
            self._looked_s = -math.inf
        else:
            self._fail(node, f"cannot start an actor: {error_lines[-1]}")

    def _fail(self, node: int, fault: str) -> None:
        """Give up an agent, and report why."""
        place = self._status.places[node]
        write_error(f"{place.name} ({place.address}) {fault}")
        if self._slots[node].order is None:
            places = {**self._status.places, node: replace(place, fault=fault)}
            self._tell(replace(self._status, places=places))
        self._end(node)

    def _end(self, node: int) -> None:
        if slot := self._slots.pop(node, None):
            if slot.actor is not None:
                self._ray.kill(slot.actor)
            if slot.order:
                slot.order.withdraw()
