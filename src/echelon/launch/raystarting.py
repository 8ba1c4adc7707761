"""A controller's place on a Ray cluster: where its agents come from, and which nodes are left.

Ray itself is asked by a process of its own (raystep.py), which writes down what it hears.
"""

import asyncio
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from echelon.core.rundir import RunDir
from echelon.core.shell import Shell
from echelon.launch import addresses
from echelon.launch.allocation import View
from echelon.launch.crew import Stop
from echelon.launch.rayplan import CANCELLED, Plan, bundle_of, is_current, read_standing
from echelon.launch.request import LaunchRequest
from echelon.launch.starting import Started

_LOOK_S = 0.5
"""How often we look whether the user wants the end at once."""


class RayStarter:
    """One agent on each of some nodes of the Ray cluster that our job is of."""

    def __init__(
        self,
        shell: Shell,
        environ: Mapping[str, str],
        *,
        run: RunDir,
        attempt: int,
        request: LaunchRequest,
    ) -> None:
        self._shell, self._environ, self._request = shell, environ, request
        self._run, self._attempt = run, attempt
        self._folder = run.attempt(attempt)
        self.nodes = request.high

    def ranks(self, node: int) -> int:  # noqa: ARG002  all are alike
        return 1

    def host(self, node: int) -> str:
        standing = read_standing(self._folder)
        place = standing.places.get(node) if standing else None
        return place.name if place else f"node{node}"

    def candidates(self) -> list[str]:
        """Ask the kernel which way leads to the head: there the other nodes come too."""
        head = self._environ.get("RAY_ADDRESS", "").rpartition(":")[0].strip("[]")
        towards = addresses.address_towards(head) if head else ""
        own = [towards] if towards else [addresses.LOOPBACK]
        return list(dict.fromkeys([*own, *addresses.host_addresses()]))

    def start(
        self, nodes: Sequence[int], argv: Sequence[str], env: Mapping[str, str], logs: Path
    ) -> list[Started]:
        plan = Plan(
            run=str(self._run.path),
            attempt=self._attempt,
            nodes=list(nodes),
            low=self._request.low,
            high=self._request.high,
            bundle=bundle_of(self._request),
            argv=list(argv),
        )
        log = logs / f"ray-{nodes[0]}.log"
        launcher = Path(__file__).resolve().parents[2]
        step = [sys.executable, str(launcher), "ray-step", plan.render()]
        pid = self._shell.start(step, log=log, env=env)
        return [Started(pid=pid, nodes=frozenset(nodes), log=log)]

    def waits(self) -> bool:
        return read_standing(self._folder) is None


class RayAllocation:
    """Nodes of a Ray cluster: no time limit, and a node is ours as long as Ray has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:  # noqa: ARG002
        """Wait for the user to want the end at once: a job of Ray's can be asked only once."""
        wish = self._folder / CANCELLED
        while not await asyncio.to_thread(wish.exists):  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(_LOOK_S)
        post(Stop("cancelled", "the run was cancelled", 130, at_once=True))

    async def explain(self, stop: Stop) -> Stop:
        return stop

    async def reaches_cluster(self) -> bool:
        standing = await asyncio.to_thread(read_standing, self._folder)
        return standing is not None and is_current(standing)

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        standing = await asyncio.to_thread(read_standing, self._folder)
        if standing is None or not is_current(standing):
            return None
        return frozenset(standing.names()) & set(hosts)
