"""One process per node: starts the node's ranks through its zygote, watches them, and reports.

It obeys the controller for as long as the connection lives; when that is gone, so are the ranks.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from echelon.core.nodes import expand
from echelon.core.rundir import RunDir
from echelon.core.shell import LocalShell, Shell
from echelon.errors import UsageError
from echelon.launch import addresses
from echelon.launch.beacon import Beacon
from echelon.launch.contract import (
    CONTROLLER,
    KEY,
    NODE,
    RankFiles,
    common_environment,
    rank_environment,
    rank_files,
)
from echelon.launch.doors import Doors, try_doors
from echelon.launch.files import AgentFiles, Dumper
from echelon.launch.guard import Guard
from echelon.launch.link import SILENCE_S, Link, connect, sleep_a_pulse
from echelon.launch.messages import (
    Commit,
    Dump,
    End,
    Ended,
    Hello,
    Leave,
    Message,
    Note,
    Open,
    Opened,
    Place,
    Probe,
    Propose,
    Pulse,
    RankExited,
    RankStarted,
    Reached,
    Signalled,
    Stacks,
    Start,
    ZygoteLost,
)
from echelon.launch.nodecheck import Fault, NodeCheck, check_places
from echelon.launch.nursery import Nursery
from echelon.launch.orphans import end_orphaned_job
from echelon.launch.request import LaunchRequest, read_request
from echelon.launch.sampling import OomWatch, fit, sample_process
from echelon.launch.spending import Motion, read_pace, read_spent
from echelon.launch.stopping import await_place
from echelon.launch.wire import MAX_PAYLOAD
from echelon.world import count_devices

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before each try to reach the controller."""


@dataclass(slots=True)
class _Rank:
    """One that was asked for and has not gone."""

    rank: int
    generation: int
    files: RankFiles
    beacon: Beacon
    motion: Motion
    pid: int = 0
    warm: bool = False


class Agent:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        node: int,
        request: LaunchRequest,
        environ: Mapping[str, str],
        shell: Shell,
        scratch: Path,
    ) -> None:
        self._run, self._attempt, self._node = run, attempt, node
        self._request, self._scratch = request, scratch
        self._gpus = count_devices(environ.get("CUDA_VISIBLE_DEVICES", ""))
        self._key = bytes.fromhex(environ[KEY])
        self._controller = _parse_candidates(environ[CONTROLLER])
        self._environ = common_environment(
            environ,
            run_id=run.run_id,
            run_dir=run.path,
            threads=request.threads,
            restarts=request.restarts,
        )
        self._guard = Guard(scratch)
        self._link: Link | None = None
        self._files = AgentFiles()
        self._ranks: dict[int, _Rank] = {}
        self._starting: dict[int, asyncio.Task[None]] = {}
        """By generation: starts that wait for storage."""
        self._reporting: Counter[int] = Counter()
        """By generation: ranks that are gone, and of whom the controller does not know yet."""
        self._doors = Doors()
        self._nursery = Nursery(
            program=request.program,
            preload=request.preload,
            env=self._environ,
            log=run.logs / f"zygote-{attempt}-{node}.log",
            shell=shell,
            guard=self._guard,
            files=self._files,
            listener=self,
        )
        self._check = NodeCheck(
            shell=shell,
            guard=self._guard,
            env={**self._environ, NODE: str(node)},
            log=run.logs / f"check-{attempt}-{node}.log",
            scratch=scratch,
        )
        self._fault: Fault | None = None
        self._serves_store = False
        self._waiting_opens: list[Open] | None = []
        """Orders that wait for the zygote to say whether it can serve; None once it has."""
        self._oom = OomWatch()
        self._done = asyncio.Event()
        self.orphaned = False
        """Whether the controller has gone without a word."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._let_in: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Serve until told to leave, or until the controller is gone."""
        loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            loop.add_signal_handler(number, self._say, Signalled(signal=number))
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._fault = await asyncio.to_thread(check_places, self._run.logs, self._scratch)
        if not self._fault:
            self._spawn(self._nursery.start())  # it has a log: not before there is a place for it
        try:
            if not self._fault:
                command = self._request.node_check
                self._fault = await self._check.run(gpus=self._gpus, command=command)
            await self._reach_controller()
            self._spawn(self._pulse())
            self._spawn(self._files.time_logs())
            await self._done.wait()
        except OSError as error:
            self._files.say(f"cannot reach the controller at {self._controller}: {error}")
            return 69
        finally:
            self._end_everything()
        return 0

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._files.say(f"a fault of Echelon's own: {type(error).__name__}: {error}")
            self._done.set()

    # --- the controller -------------------------------------------------------------------------

    async def _reach_controller(self) -> None:
        """Connect and be let in; one who floods the controller may have us turned away at first.

        Raises:
            OSError: it cannot be reached, or does not let us in.
        """
        failure: OSError = ConnectionRefusedError("it did not let us in")
        for pause_s in _PATIENCE_S:
            await asyncio.sleep(pause_s)
            self._let_in = asyncio.get_running_loop().create_future()
            try:
                await connect(self._controller, self._make_link)
            except OSError as error:
                failure = error
            else:
                if await self._let_in:
                    return
        raise failure

    def _make_link(self) -> Link:
        return Link(
            self._key, "agent", opened=self._greet, received=self._obey, lost=self._lose_controller
        )

    def _greet(self, link: Link) -> None:
        self._link = link
        self._let_in.set_result(True)
        self._say(
            Hello(
                node=self._node,
                name=os.environ.get("SLURMD_NODENAME") or f"node{self._node}",
                host=addresses.host_identity(),
                addresses=addresses.host_addresses(),
                gpus=self._gpus,
                fault=self._fault.reason if self._fault else "",
                fault_own=bool(self._fault and self._fault.own),
            )
        )

    def _lose_controller(self, _link: Link, reason: str) -> None:
        self._files.say(f"the controller is gone: {reason}")
        if self._link is not None:
            self.orphaned = not self._done.is_set()
            self._done.set()
        elif not self._let_in.done():
            self._let_in.set_result(False)

    def _say(self, message: Message) -> None:
        if self._link is not None:
            self._link.say(message)

    def _obey(self, _link: Link, message: Message) -> None:
        match message:
            case Open():
                self._open(message)
            case Probe():
                self._spawn(self._probe(message))
            case Start():
                self._starting[message.generation] = self._spawn(self._start(message))
            case End():
                self._end(message)
            case Propose() | Commit():
                self._steer(message)
            case Dump():
                self._spawn(self._dump(message.generation))
            case Leave():
                self._done.set()

    async def _pulse(self) -> None:
        """Say that we live, and notice when the controller does not."""
        while True:
            paused_s = await sleep_a_pulse()
            if paused_s > SILENCE_S / 2 and self._link:
                self._link.heard_s = time.monotonic()  # it was we who did not listen
            self._oom.look(time.monotonic())
            for r in self._ranks.values():
                r.motion.look(time.monotonic())
            self._say(
                Pulse(
                    generation=self._generation(),
                    ranks=[
                        [r.rank, r.beacon.step, *sample_process(r.pid)]
                        for r in self._ranks.values()
                        if r.pid
                    ],
                    pace=read_pace([r.beacon for r in self._ranks.values()]),
                )
            )
            if self._link and time.monotonic() - self._link.heard_s > SILENCE_S:
                self._link.drop(f"nothing was heard of it for {SILENCE_S:g} s")

    def _generation(self) -> int:
        return max(*self._starting, *(r.generation for r in self._ranks.values()), 0, 0)

    # --- where the ranks meet -------------------------------------------------------------------

    def _open(self, order: Open) -> None:
        if self._waiting_opens is not None:
            self._waiting_opens.append(order)
            return
        ports = self._doors.open(order.addresses)
        self._say(Opened(generation=order.generation, ports=ports, served=self._serves_store))

    async def _probe(self, order: Probe) -> None:
        reached = await try_doors(order.ports)
        self._say(Reached(generation=order.generation, addresses=reached))

    # --- ranks ----------------------------------------------------------------------------------

    async def _start(self, order: Start) -> None:
        self._files.set_clock(order.now_s)
        if door := self._doors.take(order.address):
            if order.served:
                self._nursery.tell({"order": "store", "generation": order.generation}, door)
            door.close()
        log = self._run.rank_log(attempt=self._attempt, generation=order.generation, rank=0)
        try:
            await self._files.insist(partial(log.parent.mkdir, mode=0o700, exist_ok=True))
            self._start_ranks(order)
        except OSError as error:
            self._fail_start(order, error)
        finally:
            self._starting.pop(order.generation, None)

    def _start_ranks(self, order: Start) -> None:
        interface = addresses.interface_towards(order.address)
        for local_rank in range(order.count):
            rank = order.first_rank + local_rank
            log = self._run.rank_log(attempt=self._attempt, generation=order.generation, rank=rank)
            files = rank_files(log, self._scratch, rank)
            env = rank_environment(
                order, local_rank, files, interface=interface, environ=self._environ
            )
            beacon = Beacon.create(files.beacon)
            self._ranks[rank] = _Rank(
                rank=rank,
                generation=order.generation,
                files=files,
                beacon=beacon,
                motion=Motion(beacon),
            )
            self._files.follow(log)
            self._nursery.tell(
                {
                    "order": "start",
                    "generation": order.generation,
                    "rank": rank,
                    "env": env,
                    "log": str(log),
                    "error": str(files.error),
                    "stacks": str(files.stacks),
                }
            )

    def _fail_start(self, order: Start, error: OSError) -> None:
        """Tell why a rank cannot be started: a full disk, say. Those that were end with it."""
        ranks = range(order.first_rank, order.first_rank + order.count)
        rank = next((rank for rank in ranks if rank not in self._ranks), order.first_rank)
        places = f"it has files in {self._run.logs} and {self._scratch.parent}"
        message = f"it cannot be started: {error}; {places}"
        record = {"type": type(error).__name__, "message": message}
        self._say(RankExited(generation=order.generation, rank=rank, code=1, error=record))

    def _end(self, end: End) -> None:
        if start := self._starting.pop(end.generation, None):
            start.cancel()
        if self._is_over(end.generation):
            self._finish(end.generation)
            return
        kill = {"order": "end", "generation": end.generation, "signal": signal.SIGKILL}
        if end.grace_s > 0:
            if end.signal:
                self._nursery.tell({**kill, "signal": end.signal})
            asyncio.get_running_loop().call_later(end.grace_s, self._nursery.tell, kill)
        else:
            self._nursery.tell(kill)

    def _is_over(self, generation: int) -> bool:
        there = any(r.generation == generation for r in self._ranks.values())
        return not there and not self._reporting[generation]

    def _finish(self, generation: int) -> None:
        """Say that a generation is gone; its store goes with it."""
        self._nursery.tell({"order": "end", "generation": generation, "signal": signal.SIGKILL})
        self._say(Ended(generation=generation))

    def rank_exited(self, rank: int, status: int) -> None:
        gone = self._ranks.pop(rank, None)
        if gone is None:
            return
        self._guard.forget(gone.pid)
        self._files.finish(gone.files.log)
        step = gone.beacon.step
        spent = read_spent(gone.beacon, gone.motion.look(time.monotonic()))
        gone.beacon.close()
        report = RankExited(
            generation=gone.generation,
            rank=rank,
            code=max(0, status),
            signal=max(0, -status),
            step=step,
            out_of_memory=self._oom.happened(time.monotonic()),
            spent=spent,
        )
        self._reporting[gone.generation] += 1
        self._spawn(self._report(report, gone.files))

    async def _report(self, report: RankExited, files: RankFiles) -> None:
        """Tell that a rank is gone, with its last words if it has failed."""
        if report.code or report.signal:
            error, tail = await self._files.last_words(files)
            report = replace(report, error=error, tail=tail)
        self._say(report)
        self._reporting[report.generation] -= 1
        if self._is_over(report.generation):
            self._finish(report.generation)

    def _beacons(self, generation: int) -> list[Beacon]:
        return [r.beacon for r in self._ranks.values() if r.generation == generation]

    def _steer(self, order: Propose | Commit) -> None:
        """Have the ranks wait at a place, or stop there."""
        for beacon in self._beacons(order.generation):
            if isinstance(order, Commit):
                beacon.committed = order.place
            elif order.place:
                beacon.proposed = order.place
        if order.generation in self._starting:
            # No rank is there that could come to any place: there is nothing to agree on.
            nowhere = Place(
                generation=order.generation, proposed=order.place, furthest=-1, waiting=False
            )
            self._say(nowhere)
        elif isinstance(order, Propose):
            self._spawn(self._tell_place(order))

    async def _tell_place(self, order: Propose) -> None:
        here = await await_place(
            lambda: self._beacons(order.generation), order.generation, order.place
        )
        if here:
            self._say(here)

    async def _dump(self, generation: int) -> None:
        """Have every rank write its stacks, and send what they wrote."""
        asked = {
            r.rank: Dumper(pid=r.pid, warm=r.warm, stacks=r.files.stacks)
            for r in self._ranks.values()
            if r.generation == generation and r.pid
        }
        found = await self._files.dump(asked)
        self._say(Stacks(generation=generation, ranks=fit(found, MAX_PAYLOAD - 1024)))

    # --- what the nursery says ------------------------------------------------------------------

    def zygote_ready(self, serves_store: bool, reason: str) -> None:
        self._serves_store = serves_store
        if reason:
            self._say(Note(text=f"ranks start cold on this node: {reason}"))
        waiting, self._waiting_opens = self._waiting_opens or [], None
        for order in waiting:
            self._open(order)

    def rank_started(self, rank: int, pid: int, warm: bool) -> None:
        started = self._ranks[rank]
        started.pid, started.warm = pid, warm
        self._guard.watch(pid)
        generation = started.generation
        self._say(RankStarted(generation=generation, rank=rank, pid=pid, warm=warm))

    def zygote_lost(self, status: int) -> None:
        """Ranks die with their zygote; what they had started, we end. The next comes at once."""
        self._waiting_opens = []
        self._spawn(self._nursery.start())
        if self._ranks or self._starting:
            self._say(
                ZygoteLost(
                    generation=self._generation(),
                    code=max(0, status),
                    signal=max(0, -status),
                    out_of_memory=self._oom.happened(time.monotonic()),
                )
            )
        for start in self._starting.values():
            start.cancel()  # its store went with the zygote
        self._starting.clear()
        for rank in list(self._ranks.values()):
            if rank.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
            self.rank_exited(rank.rank, -signal.SIGKILL)

    def _reap(self) -> None:
        """Collect what has died: zygote, guard, checks, and orphans of a killed zygote."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._nursery.collected(pid, status)
            self._check.collected(pid, status)
            if pid == self._guard.pid and not self._done.is_set():
                self._guard.start()

    def _end_everything(self) -> None:
        self._nursery.close()
        for rank in self._ranks.values():
            if rank.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
            self._files.finish(rank.files.log)
        self._files.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _parse_candidates(text: str) -> list[tuple[str, int]]:
    found = []
    for part in text.split(","):
        address, _, port = part.rpartition(":")
        found.append((address, int(port)))
    return found


def _node_in_job(environ: Mapping[str, str]) -> int:
    """Return our node's place in the job; in a step that spans part of it, Slurm counts anew."""
    hosts = expand(environ["SLURM_JOB_NODELIST"])
    return hosts.index(environ["SLURMD_NODENAME"])


def main(arguments: list[str]) -> int:
    """`agent RUN ATTEMPT`, with the rest in variables: the key is nobody else's to see."""
    run, attempt = RunDir.open(Path(arguments[0])), int(arguments[1])
    environ = dict(os.environ)
    if KEY not in environ:
        raise UsageError("an agent is started by its controller", hint="use: echelon run")
    node = int(environ[NODE]) if NODE in environ else _node_in_job(environ)
    os.environ.pop(KEY)
    shared = Path("/dev/shm")  # noqa: S108  a folder of our own in it
    place = shared if os.access(shared, os.W_OK) else None
    request = read_request(run)

    async def serve() -> int:
        # Only now: until the agent has its guard, nobody would remove it.
        scratch = Path(tempfile.mkdtemp(prefix="echelon-", dir=place))
        agent = Agent(
            run=run,
            attempt=attempt,
            node=node,
            request=request,
            environ=environ,
            shell=LocalShell(),
            scratch=scratch,
        )
        code = await agent.run()
        if agent.orphaned:
            end_orphaned_job(run, attempt, environ, LocalShell(), mode=request.hand_over)
        return code

    return asyncio.run(serve())
