"""A controller's place on a Ray cluster: where its agents come from, and which nodes are left.

Ray itself is asked by a process of its own (driver_module.py), which writes down what it hears.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from echelon.core import addresses
from echelon.core.shell import Shell
from echelon.launch.backends.base import Outlook, Started, View
from echelon.launch.backends.ray.plan import Plan, bundle_of
from echelon.launch.backends.ray.status import CANCELLED, StatusReader, is_current
from echelon.launch.protocol.rank_environment import render_key
from echelon.launch.protocol.stop import Stop
from echelon.launch.roles import role_command
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec

_LOOK_S = 0.5
"""How often we look whether the user wants the end at once."""


class RayStarter:
    """One agent on each of some nodes of the Ray cluster that our job is of.

    The first time it starts the driver of all of them, and then, for each that is called back, a
    process that asks the driver for it.
    """

    def __init__(
        self,
        shell: Shell,
        environ: Mapping[str, str],
        *,
        run: RunDir,
        attempt: int,
        request: JobSpec,
    ) -> None:
        self._shell, self._environ, self._request = shell, environ, request
        self._run, self._attempt = run, attempt
        self._reader = StatusReader(run.attempt(attempt))
        self._driver = 0
        self.nodes = request.nodes.high

    def ranks(self, node: int) -> int:  # noqa: ARG002  all are alike
        return 1

    def host(self, node: int) -> str:
        status = self._reader.read()
        place = status.places.get(node) if status else None
        return place.name if place else f"node{node}"

    def candidates(self) -> list[str]:
        """Ask the kernel which way leads to the head: there the other nodes come too."""
        head = self._environ.get("RAY_ADDRESS", "").rpartition(":")[0].strip("[]")
        towards = addresses.address_towards(head) if head else ""
        own = [towards] if towards else [addresses.LOOPBACK]
        return list(dict.fromkeys([*own, *addresses.host_addresses()]))

    def start(
        self,
        nodes: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str],
        logs: Path,
        key: bytes,
    ) -> list[Started]:
        if not self._driver:
            return [self._start_driver(nodes, argv, env, logs, key)]
        return [self._call(node, env, logs) for node in nodes]

    def _start_driver(
        self,
        nodes: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str],
        logs: Path,
        key: bytes,
    ) -> Started:
        plan = Plan(
            run=str(self._run.path),
            attempt=self._attempt,
            low=self._request.nodes.low,
            high=self._request.nodes.high,
            bundle=bundle_of(self._request),
            argv=list(argv),
        )
        log = logs / "ray.log"
        driver = role_command("ray-driver", plan.render())
        self._driver = self._shell.start(driver, log=log, env=env, stdin=render_key(key))
        return Started(pid=self._driver, nodes=frozenset(nodes), log=log, dismissal=signal.SIGTERM)

    def _call(self, node: int, env: Mapping[str, str], logs: Path) -> Started:
        log = logs / f"ray-{node}.log"
        folder = self._run.attempt(self._attempt)
        argv = role_command("ray-call", folder, node, self._driver)
        pid = self._shell.start(argv, log=log, env=env)
        return Started(pid=pid, nodes=frozenset({node}), log=log)

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


class RayAllocation:
    """Nodes of a Ray cluster: no time limit, and a place is ours as long as somebody keeps it.

    Ray looks for another node for a place whose node is lost.
    """

    def __init__(self, folder: Path) -> None:
        self._wish, self._reader = folder / CANCELLED, StatusReader(folder)

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:  # noqa: ARG002
        """Wait for the user to want the end at once: a job of Ray's can be asked only once."""
        while not await asyncio.to_thread(self._wish.exists):  # noqa: ASYNC110  others make it
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
