"""The agent, one process per node: it follows the controller's orders and sends heartbeats.

Orders are about the node's ranks (`local_workers.py`). When the connection is lost, the agent ends
its ranks and exits.
"""

import asyncio
import ctypes
import logging
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from echelon.core import addresses
from echelon.core.frozen import frozen
from echelon.core.shell import collect_children
from echelon.errors import EchelonError
from echelon.launch.agent.background_tasks import BackgroundTasks
from echelon.launch.agent.controller_link import ControllerLink
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.local_workers import LocalWorkers
from echelon.launch.agent.node_check import Fault, NodeCheck, check_places
from echelon.launch.agent.rendezvous_sockets import try_sockets
from echelon.launch.agent.staging import NodeStage
from echelon.launch.agent.telemetry_client import TelemetryClient
from echelon.launch.agent.zygote_client import ZygoteClient
from echelon.launch.container.machine import remember_variant
from echelon.launch.container.store import cache_folder
from echelon.launch.protocol.link import sleep_a_pulse
from echelon.launch.protocol.messages import (
    Commit,
    Dump,
    End,
    Hello,
    Leave,
    Message,
    Note,
    Open,
    Probe,
    Propose,
    Reached,
    ReadTraces,
    Signalled,
    Stage,
    Start,
)
from echelon.launch.protocol.rank_environment import STEP
from echelon.launch.zygote.leftovers import await_trackers
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec

_log = logging.getLogger(__name__)
_PR_SET_CHILD_SUBREAPER = 36
_REAP_AGAIN_S = 0.2
_SHORT_S = 5.0
"""A step that is shorter is not measured."""


@frozen
class Node:
    """The node of an agent."""

    number: int
    name: str
    gpus: int


class Agent:
    """See the module. `entrypoint.build_agent` builds it with its parts."""

    def __init__(
        self,
        *,
        run: RunDir,
        request: JobSpec,
        node: Node,
        environ: Mapping[str, str],
        scratch: Path,
        controller: ControllerLink,
        tasks: BackgroundTasks,
        guard: Guard,
        files: AgentFiles,
        check: NodeCheck,
        stage: NodeStage,
        zygote: ZygoteClient,
        ranks: LocalWorkers,
        telemetry: TelemetryClient,
    ) -> None:
        self._run, self._request, self._node = run, request, node
        self._environ, self._scratch = environ, scratch
        self._controller, self._tasks = controller, tasks
        self._guard, self._files, self._check = guard, files, check
        self._stage, self._zygote, self._ranks = stage, zygote, ranks
        self._telemetry = telemetry
        self._fault: Fault | None = None
        self._port = 0
        """Where this node passes on its copy of what is staged."""
        self._done = asyncio.Event()
        self.orphaned = False
        """Whether the connection was lost without an order to leave."""
        tasks.on_failure = self._take_failure

    async def run(self) -> int:
        """Follow orders until told to leave, or until the connection is lost."""
        loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._controller.say, Signalled(signal=number))
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._fault = await asyncio.to_thread(check_places, self._run.logs, self._scratch)
        if self._request.stage and not self._fault:
            await self._stage.look()
        # Only now: it writes a log, and the check has shown that this is possible.
        if self._fault or self._lacks_stage():
            pass  # there is nothing to start, or not yet
        elif self._request.image:
            self._fault = await self._enter_image()
        else:
            self._tasks.spawn(self._zygote.start(self._ranks))
        try:
            if not self._fault and STEP not in self._environ:  # else a keeper has checked the node
                command = self._request.node_check
                fault = await self._check.run(gpus=self._node.gpus, command=command)
                self._fault = self._fault or fault  # the zygote may have failed meanwhile
            await self._controller.reach(self)
            if not self._fault and self._lacks_stage():
                self._tasks.spawn(self._start_staged())
            self._tasks.spawn(self._pulse())
            self._tasks.spawn(self._files.time_logs())
            if self._request.telemetry:
                self._tasks.spawn(self._start_telemetry())
            await self._done.wait()
        except OSError as error:
            self._files.say(
                f"cannot reach the controller at {self._controller.candidates}: {error}"
            )
            return 69
        finally:
            self._end_everything()
        return 0

    async def _start_telemetry(self) -> None:
        """Measure the node; not for a step of some seconds, whose start this would delay."""
        await asyncio.sleep(_SHORT_S if STEP in self._environ else 0)
        await self._telemetry.start()

    def _lacks_stage(self) -> bool:
        """Tell whether something has to be copied to this node first."""
        return self._request.stage and self._stage.state == "part"

    async def _start_staged(self) -> None:
        """Start the zygote when the copy is there, or if there will be none."""
        staged = await self._stage.fill()
        if not self._request.image:
            await self._zygote.start(self._ranks)
        elif fault := await self._enter_image():
            self._fault = fault
            self._introduce()
            return
        self._controller.say(staged)

    async def _enter_image(self) -> Fault | None:
        """Start the zygote inside the image; return why this node cannot."""
        try:
            await self._zygote.start(self._ranks)
        except EchelonError as error:
            return _as_fault(error)
        if container := self._zygote.container:
            cache = cache_folder(self._request.image_cache, self._environ)
            await asyncio.to_thread(remember_variant, container, cache)
        return None

    def _take_failure(self, error: BaseException) -> None:
        """Handle the failure of a background task."""
        if isinstance(error, EchelonError):
            self._fault = _as_fault(error)
            self._introduce()  # the controller excludes this node
        else:
            self._files.say(f"internal error: {type(error).__name__}: {error}")
            self._done.set()

    # --- the controller -------------------------------------------------------------------------

    def controller_accepted(self, own_address: str) -> None:
        """Greet the controller."""
        if self._request.stage and self._stage.state:
            self._port = self._stage.listen(own_address)
        self._introduce()

    def _introduce(self) -> None:
        _log.info("greeting the controller%s", f": {self._fault.reason}" if self._fault else "")
        self._controller.say(
            Hello(
                node=self._node.number,
                name=self._node.name,
                host=addresses.host_identity(),
                addresses=addresses.host_addresses(),
                pid=os.getpid(),
                gpus=self._node.gpus,
                fault=self._fault.reason if self._fault else "",
                fault_own=bool(self._fault and self._fault.own),
                stage=self._stage.state if self._request.stage else "",
                stage_port=self._port,
                unstaged=self._stage.unstaged,
            )
        )

    def controller_lost(self) -> None:
        """Leave; unless that was ordered, the job may have lost its controller."""
        self.orphaned = not self._done.is_set()
        self._done.set()

    def controller_answers(self) -> bool:
        """Tell whether the host of a controller that was lost responds."""
        return self._controller.host_answers()

    def controller_ordered(self, message: Message) -> None:
        """Follow an order."""
        match message:
            case Open():
                self._ranks.open(message)
            case Probe():
                self._tasks.spawn(self._probe(message))
            case Start():
                self._ranks.start(message)
            case End():
                self._ranks.end(message)
            case Propose() | Commit():
                self._ranks.steer(message)
            case ReadTraces():
                self._tasks.spawn(self._ranks.read_traces(message.generation))
            case Dump():
                self._tasks.spawn(self._ranks.dump(message.generation))
            case Stage():
                self._stage.order(message)
            case Leave():
                self._done.set()

    async def _probe(self, order: Probe) -> None:
        reached = await try_sockets(order.ports)
        self._controller.say(Reached(generation=order.generation, addresses=reached))

    async def _pulse(self) -> None:
        """Send heartbeats, and detect when the controller's stop."""
        while True:
            paused_s = await sleep_a_pulse()
            self._controller.beat(self._ranks.pulse(), paused_s)
            for text in self._telemetry.read_notes():
                self._controller.say(Note(text=text))

    # --- child processes, and the end -----------------------------------------------------------

    def _reap(self) -> None:
        """Reap dead children: zygote, guard, checks, and orphans of a killed zygote."""
        dead = collect_children()
        if dead is None:
            asyncio.get_running_loop().call_later(_REAP_AGAIN_S, self._reap)
        for pid, status in dead or ():
            self._zygote.collected(pid, status)
            self._check.collected(pid, status)
            self._telemetry.collected(pid)
            if pid == self._guard.pid and not self._done.is_set():
                self._guard.start()

    def _end_everything(self) -> None:
        # A child may die after the loop has closed the pipe that signals are written to.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._telemetry.close()
        self._zygote.close()
        self._ranks.close()
        self._stage.close()
        await_trackers()
        self._files.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _as_fault(error: EchelonError) -> Fault:
    return Fault(reason=f"{error.message}{f' (hint: {error.hint})' if error.hint else ''}")
