"""The agent, one process per node: it follows the controller's orders and sends heartbeats.

Orders are about the node's ranks (`local_workers.py`). When the connection is lost, the agent ends
its ranks and exits.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from echelon.core import addresses
from echelon.core.proc import die_with
from echelon.core.shell import LocalShell, Shell, collect_children
from echelon.errors import EchelonError, UsageError
from echelon.launch.agent.files import AgentFiles
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.image import list_folders, open_image
from echelon.launch.agent.local_workers import LocalWorkers
from echelon.launch.agent.node_check import Fault, NodeCheck, check_places
from echelon.launch.agent.orphans import answers_at, end_orphaned_job
from echelon.launch.agent.rendezvous_sockets import try_sockets
from echelon.launch.agent.scratch import make_scratch
from echelon.launch.agent.staging import NodeStage
from echelon.launch.agent.telemetry_client import TelemetryClient
from echelon.launch.agent.zygote_client import ZygoteClient
from echelon.launch.code_path import VARIABLE, own_sites, search_path
from echelon.launch.container.commands import LIBRARY
from echelon.launch.container.machine import remember_variant
from echelon.launch.container.store import cache_folder
from echelon.launch.program import find_program
from echelon.launch.program_text import PACKAGE, read_imports
from echelon.launch.protocol.link import Link, connect, sleep_a_pulse
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
from echelon.launch.protocol.rank_environment import (
    CONTROLLER,
    FILES,
    NAME,
    NODE,
    REPLACES,
    TIED,
    common_environment,
    node_in_job,
    parse_candidates,
    receive_key,
)
from echelon.launch.zygote.leftovers import await_trackers
from echelon.run.code import ProjectCopy, find_copy
from echelon.run.directory import RunDir
from echelon.run.request import (
    Environment,
    is_requeued,
    read_code,
    read_environment,
    read_spec,
)
from echelon.run.tracker import find_tracker
from echelon.spec.job_spec import JobSpec
from echelon.world import count_devices

_PR_SET_CHILD_SUBREAPER = 36
_OWN_LINE = "/proc/self/cmdline"
_REACH_S = 60.0
"""How long to try to reach the controller."""
_REFUSED_S = 15.0
"""The same where the connection is refused: nothing listens there."""
_REAP_AGAIN_S = 0.2
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The longest pause after each attempt; the last value applies to all further attempts."""


class Agent:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        node: int,
        request: JobSpec,
        copy: ProjectCopy | None,
        recorded: Environment | None,
        environ: Mapping[str, str],
        key: bytes,
        shell: Shell,
        scratch: Path,
        lock: int,
    ) -> None:
        self._run, self._node = run, node
        self._name = environ.get(NAME) or environ.get("SLURMD_NODENAME") or f"node{node}"
        self._request, self._scratch = request, scratch
        self._gpus = count_devices(environ.get("CUDA_VISIBLE_DEVICES", ""))
        self._key, self._environ = key, environ
        self._controller = parse_candidates(environ[CONTROLLER])
        program = find_program(request, copy)
        allowed = request.allowed_restarts(uses_library=PACKAGE in read_imports(program))
        common = common_environment(
            environ,
            run_id=run.run_id,
            run_dir=run.path,
            threads=request.omp_threads,
            cpus=request.cpus_per_task,
            restarts=allowed or 0,
            tracker=find_tracker(run),
        )
        ranks = dict(common)  # our own processes look for modules as before
        if copy is not None:
            path = search_path(
                common,
                copy,
                module=request.module,
                sites=[] if request.image else own_sites(),
                finders=scratch / "finders",
            )
            ranks |= {VARIABLE: path} if path else {}
        if request.image:
            ranks[VARIABLE] = os.pathsep.join(filter(None, (ranks.get(VARIABLE), LIBRARY)))
        self._guard = Guard(scratch, lock)
        self._link: Link | None = None
        self._files = AgentFiles()
        self._telemetry = TelemetryClient(
            run,
            attempt=attempt,
            node=node,
            scratch=scratch,
            env=common,
            shell=shell,
            guard=self._guard,
            files=self._files,
        )
        self._stage = NodeStage(
            request, recorded=recorded, node=self._name, environ=environ, shell=shell, key=key
        )
        self._zygote = ZygoteClient(
            program=program,
            preload=request.preload,
            env=ranks,
            log=run.logs / f"zygote-{attempt}-{node}.log",
            shell=shell,
            guard=self._guard,
            files=self._files,
            open_image=partial(
                open_image,
                request,
                list_folders(request, run.path, scratch, environ),
                environ=environ,
                shell=shell,
                gpus=self._gpus > 0,
                copy=lambda: self._stage.copy,
            )
            if request.image
            else None,
            python=request.image_python or "python3",
            mount=lambda: self._stage.mount,
        )
        self._ranks = LocalWorkers(
            run=run,
            attempt=attempt,
            environ=ranks,
            scratch=scratch,
            zygote=self._zygote,
            guard=self._guard,
            files=self._files,
            say=self._say,
            spawn=self._spawn,
        )
        self._check = NodeCheck(
            shell=shell,
            guard=self._guard,
            env={**common, NODE: str(node)},
            log=run.logs / f"check-{attempt}-{node}.log",
            scratch=scratch,
        )
        self._fault: Fault | None = None
        self._port = 0
        """Where this node passes on its copy of what is staged."""
        self._done = asyncio.Event()
        self.orphaned = False
        """Whether the connection was lost without an order to leave."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Follow orders until told to leave, or until the connection is lost."""
        loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._say, Signalled(signal=number))
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
            self._spawn(self._zygote.start(self._ranks))
        try:
            if not self._fault:
                command = self._request.node_check
                fault = await self._check.run(gpus=self._gpus, command=command)
                self._fault = self._fault or fault  # the zygote may have failed meanwhile
            await self._reach_controller()
            if not self._fault and self._lacks_stage():
                self._spawn(self._start_staged())
            self._spawn(self._pulse())
            self._spawn(self._files.time_logs())
            if self._request.telemetry:
                self._spawn(self._telemetry.start())
            await self._done.wait()
        except OSError as error:
            self._files.say(f"cannot reach the controller at {self._controller}: {error}")
            return 69
        finally:
            self._end_everything()
        return 0

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
        self._say(staged)

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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EchelonError):
            self._fault = _as_fault(error)
            self._introduce()  # the controller excludes this node
        elif error:
            self._files.say(f"internal error: {type(error).__name__}: {error}")
            self._done.set()

    # --- the controller -------------------------------------------------------------------------

    async def _reach_controller(self) -> None:
        """Connect and authenticate, with retries: a flood of other connections may keep us out.

        Raises:
            OSError: the controller cannot be reached, or does not accept us.
        """
        began_s = time.monotonic()
        for attempt in itertools.count():
            failure: OSError = ConnectionAbortedError("it did not accept the connection")
            self._accepted = asyncio.get_running_loop().create_future()
            try:
                await connect(self._controller, self._make_link, attempt=attempt)
            except OSError as error:
                failure = error
            else:
                if await self._accepted:
                    return
            patience_s = _REFUSED_S if isinstance(failure, ConnectionRefusedError) else _REACH_S
            if time.monotonic() - began_s > patience_s:
                raise failure
            # Random, so that agents that were refused together do not retry together.
            await asyncio.sleep(random.uniform(0, _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]))  # noqa: S311

    def _make_link(self) -> Link:
        return Link(
            self._key, "agent", opened=self._greet, received=self._obey, lost=self._lose_controller
        )

    def _greet(self, link: Link) -> None:
        self._link = link
        self._accepted.set_result(True)
        if self._request.stage and self._stage.state:
            self._port = self._stage.listen(link.own_address)
        self._introduce()

    def _introduce(self) -> None:
        self._say(
            Hello(
                node=self._node,
                name=self._name,
                host=addresses.host_identity(),
                addresses=addresses.host_addresses(),
                pid=os.getpid(),
                gpus=self._gpus,
                fault=self._fault.reason if self._fault else "",
                fault_own=bool(self._fault and self._fault.own),
                stage=self._stage.state if self._request.stage else "",
                stage_port=self._port,
                unstaged=self._stage.unstaged,
            )
        )

    def _lose_controller(self, _link: Link, reason: str) -> None:
        self._files.say(f"connection to the controller lost: {reason}")
        if self._link is not None:
            self.orphaned = not self._done.is_set()
            self._done.set()
        elif not self._accepted.done():
            self._accepted.set_result(False)

    def controller_answers(self) -> bool:
        """Tell whether the controller's host responds at the address of the lost connection."""
        reached = self._link.peer_address if self._link else ""
        return any(answers_at(*one) for one in self._controller if one[0] == reached)

    def _say(self, message: Message) -> None:
        if self._link is not None:
            self._link.say(message)

    def _obey(self, _link: Link, message: Message) -> None:
        match message:
            case Open():
                self._ranks.open(message)
            case Probe():
                self._spawn(self._probe(message))
            case Start():
                self._ranks.start(message)
            case End():
                self._ranks.end(message)
            case Propose() | Commit():
                self._ranks.steer(message)
            case ReadTraces():
                self._spawn(self._ranks.read_traces(message.generation))
            case Dump():
                self._spawn(self._ranks.dump(message.generation))
            case Stage():
                self._stage.order(message)
            case Leave():
                self._done.set()

    async def _probe(self, order: Probe) -> None:
        reached = await try_sockets(order.ports)
        self._say(Reached(generation=order.generation, addresses=reached))

    async def _pulse(self) -> None:
        """Send heartbeats, and detect when the controller's stop."""
        while True:
            paused_s = await sleep_a_pulse()
            if self._link:
                self._link.beat(self._ranks.pulse(), paused_s)
            for text in self._telemetry.read_notes():
                self._say(Note(text=text))

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


def _limit_files(most: str) -> None:
    """Restore the user's limit of open files, for the ranks too: the controller raised its own."""
    if most:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(most), hard))


def _replace(pid: str) -> None:
    """Kill the agent that this one replaces, if it still runs; its guard then ends its ranks."""
    with contextlib.suppress(OSError):
        if pid and Path("/proc", pid, "cmdline").read_bytes() == Path(_OWN_LINE).read_bytes():
            os.kill(int(pid), signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Run `agent RUN ATTEMPT REQUEST`; the rest is in variables, the key on standard input."""
    run, attempt = RunDir.open(Path(arguments[0])), int(arguments[1])
    environ = dict(os.environ)
    if CONTROLLER not in environ:
        raise UsageError(
            f"{CONTROLLER} is not set: only the controller starts agents", hint="use: echelon run"
        )
    key = receive_key(sys.stdin.buffer)
    node = node_in_job(environ)
    if parent := environ.get(TIED):
        die_with(int(parent), signal.SIGKILL)  # our guard ends the rest
    _limit_files(environ.get(FILES, ""))
    _replace(environ.get(REPLACES, ""))
    request = read_spec(run, arguments[2])
    copy = find_copy(run, read_code(run, arguments[2]), request.chdir)
    recorded = read_environment(run, arguments[2]) if request.stage else None

    async def serve() -> int:
        # As late as possible: without a guard, nothing removes it if we are killed.
        scratch, lock = make_scratch()
        agent = Agent(
            run=run,
            attempt=attempt,
            node=node,
            request=request,
            copy=copy,
            recorded=recorded,
            environ=environ,
            key=key,
            shell=LocalShell(),
            scratch=scratch,
            lock=lock,
        )
        code = await agent.run()
        if agent.orphaned:
            end_orphaned_job(
                run,
                attempt,
                environ,
                LocalShell(),
                requeue=is_requeued(run, request),
                pid=os.getpid(),
                answers=agent.controller_answers,
            )
        return code

    return asyncio.run(serve())
