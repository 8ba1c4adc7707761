"""The backend of a Ray cluster: where agents come from, and which nodes are left.

A separate process talks to Ray (`driver.py`) and records the status of the nodes.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from echelon.core import addresses
from echelon.core.shell import Shell
from echelon.launch.backends.base import (
    AgentCommand,
    AttemptContext,
    Backend,
    ChildStarter,
    NoStandby,
    Outlook,
    OwnNodes,
    Started,
    StartedProcess,
    View,
)
from echelon.launch.backends.ray.plan import DriverPlan, bundle_of
from echelon.launch.backends.ray.status import CANCELLED, StatusReader, is_current
from echelon.launch.backends.stop import Stop
from echelon.launch.protocol.rank_environment import render_key
from echelon.launch.roles import role_command

_LOOK_S = 0.5
"""How often we check whether the user has cancelled the run."""


def ray_backend(shell: Shell, environ: Mapping[str, str], attempt: AttemptContext) -> Backend:
    """Return the backend of the Ray cluster whose job we are."""
    return Backend(
        starter=RayStarter(shell, environ, attempt),
        allocation=RayAllocation(attempt.run.attempt(attempt.number)),
        standby=NoStandby() if attempt.request.hand_over == "never" else RayStandby(),
    )


class RayStarter(ChildStarter):
    """One agent on each of some nodes of the Ray cluster.

    The first call starts the driver of all agents. Later calls start a process for each agent that
    is restarted, which asks the driver for it.
    """

    def __init__(self, shell: Shell, environ: Mapping[str, str], attempt: AttemptContext) -> None:
        self._shell, self._environ, self._attempt = shell, environ, attempt
        self._folder = attempt.run.attempt(attempt.number)
        self._reader = StatusReader(self._folder)
        self._driver = 0
        self.nodes = attempt.request.nodes.high

    def ranks(self, node: int) -> int:  # noqa: ARG002  all are alike
        return 1

    def host(self, node: int) -> str:
        status = self._reader.read()
        place = status.places.get(node) if status else None
        return place.name if place else f"node{node}"

    def candidates(self) -> list[str]:
        """Ask the kernel for the route to the head, which the other nodes reach as well."""
        head = self._environ.get("RAY_ADDRESS", "").rpartition(":")[0].strip("[]")
        towards = addresses.address_towards(head) if head else ""
        own = [towards] if towards else [addresses.LOOPBACK]
        return list(dict.fromkeys([*own, *addresses.host_addresses()]))

    def start(self, nodes: Sequence[int], command: AgentCommand) -> list[Started]:
        if not self._driver:
            return [self._start_driver(nodes, command)]
        return [self._call(node, command) for node in nodes]

    def _start_driver(self, nodes: Sequence[int], command: AgentCommand) -> Started:
        plan = DriverPlan(
            run=str(self._attempt.run.path),
            attempt=self._attempt.number,
            low=self._attempt.request.nodes.low,
            high=self._attempt.request.nodes.high,
            bundle=bundle_of(self._attempt.request),
            argv=list(command.argv),
        )
        log, key = command.logs / "ray.log", render_key(command.key)
        driver = role_command("ray-driver", plan.render())
        self._driver = self._shell.start(driver, log=log, env=command.env, stdin=key)
        return StartedProcess(
            pid=self._driver, nodes=frozenset(nodes), log=log, dismissal=signal.SIGTERM
        )

    def _call(self, node: int, command: AgentCommand) -> Started:
        log = command.logs / f"ray-{node}.log"
        argv = role_command("ray-call", self._folder, node, self._driver)
        pid = self._shell.start(argv, log=log, env=command.env)
        return StartedProcess(pid=pid, nodes=frozenset({node}), log=log)

    def outlook(self) -> Outlook:
        status = self._reader.read()
        if status is None or not status.places:
            return Outlook(waits=status.waits if status else "")
        places = status.places
        return Outlook(
            absent=frozenset(range(self.nodes)) - places.keys(),
            lost=frozenset(node for node in places if not places[node].here),
            faults={node: places[node].fault for node in places if places[node].fault},
        )


class RayAllocation(OwnNodes):
    """Nodes of a Ray cluster: no time limit; they are held as long as the driver lives.

    Ray finds another node for a place whose node is lost.
    """

    def __init__(self, folder: Path) -> None:
        self._cancelled, self._reader = folder / CANCELLED, StatusReader(folder)

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:  # noqa: ARG002
        """Wait until the user cancels the run: a job of Ray can be signalled only once."""
        while not await asyncio.to_thread(self._cancelled.exists):  # noqa: ASYNC110  others make it
            await asyncio.sleep(_LOOK_S)
        post(Stop("cancelled", "the run was cancelled", 130, at_once=True))

    async def explain(self, stop: Stop) -> Stop:
        return stop

    async def reaches_cluster(self) -> bool:
        status = await asyncio.to_thread(self._reader.read)
        return status is not None and is_current(status)

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        status = await asyncio.to_thread(self._reader.read)
        if status is None or status.waits:
            return None
        return frozenset(hosts) if is_current(status) else frozenset()

    async def left_s(self) -> float | None:
        return None


class RayStandby(NoStandby):
    """The waiting client, or the user, has to submit the next job.

    The run waits for missing nodes at its start, so a failed start would fail again.
    """

    mends: tuple[str, ...] = ("lost node",)

    async def conclude(self, *, wanted: bool) -> str:
        return "wanted" if wanted else ""
