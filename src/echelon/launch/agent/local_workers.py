"""The ranks of one node, as their agent keeps them: which are here, and what becomes of them.

The controller gives the orders, the zygote says what has happened, and the controller hears of it.
"""

import asyncio
import contextlib
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from echelon.core import addresses
from echelon.core.proc import OomWatch, fit, sample_process
from echelon.launch.agent.files import AgentFiles, Dumper
from echelon.launch.agent.guard import Guard
from echelon.launch.agent.rendezvous_sockets import RendezvousSockets
from echelon.launch.agent.stop_place import await_place
from echelon.launch.agent.zygote_client import ZygoteClient
from echelon.launch.protocol.leftovers import end_group, list_groups, remove_files
from echelon.launch.protocol.messages import (
    Commit,
    End,
    Ended,
    ForkRank,
    Message,
    Note,
    Open,
    Opened,
    Place,
    Propose,
    Pulse,
    RankExited,
    RankForked,
    RankReaped,
    RankStarted,
    ServeStore,
    SignalRanks,
    Stacks,
    Start,
    ZygoteLost,
    ZygoteReady,
)
from echelon.launch.protocol.rank_environment import RankFiles, rank_environment, rank_files
from echelon.launch.protocol.rank_shm import RankShm
from echelon.launch.protocol.telemetry_files import CLOCK
from echelon.launch.protocol.time_accounting import Motion, read_pace, read_spent
from echelon.launch.protocol.wire import MAX_PAYLOAD
from echelon.run.directory import RunDir


@dataclass(slots=True)
class _Rank:
    """One that was asked for and has not gone."""

    rank: int
    generation: int
    files: RankFiles
    beacon: RankShm
    motion: Motion
    pid: int = 0
    warm: bool = False


class LocalWorkers:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        environ: Mapping[str, str],
        scratch: Path,
        nursery: ZygoteClient,
        guard: Guard,
        files: AgentFiles,
        say: Callable[[Message], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._run, self._attempt = run, attempt
        self._environ, self._scratch = environ, scratch
        self._nursery, self._guard, self._files = nursery, guard, files
        self._say = say
        """Tells the controller."""
        self._spawn = spawn
        """Has something done beside all else; what fails in it is the agent's to report."""
        self._ranks: dict[int, _Rank] = {}
        self._kills: dict[int, asyncio.TimerHandle] = {}
        """By generation: kills that are due when its grace is over."""
        self._starting: dict[int, asyncio.Task[None]] = {}
        """By generation: starts that wait for storage."""
        self._reporting: Counter[int] = Counter()
        """By generation: ranks that are gone, and of whom the controller does not know yet."""
        self._doors = RendezvousSockets()
        self._serves_store = False
        self._waiting_opens: list[Open] | None = []
        """Orders that wait for the zygote to say whether it can serve; None once it has."""
        self._oom = OomWatch()

    # --- the controller's orders ----------------------------------------------------------------

    def open(self, order: Open) -> None:
        """Hold sockets where ranks may meet, and tell of them."""
        if self._waiting_opens is not None:
            self._waiting_opens.append(order)
            return
        ports = self._doors.open(order.addresses)
        self._say(Opened(generation=order.generation, ports=ports, served=self._serves_store))

    def start(self, order: Start) -> None:
        """Start a generation's ranks on this node, as soon as storage lets us."""
        self._starting[order.generation] = self._spawn(self._start(order))

    async def _start(self, order: Start) -> None:
        self._files.set_clock(order.now_s)
        with contextlib.suppress(OSError):  # for telemetry, which has no other word of it
            (self._scratch / CLOCK).write_text(repr(order.now_s - time.monotonic()))
        if door := self._doors.take(order.address):
            if order.served:
                self._nursery.send(ServeStore(generation=order.generation), door)
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
            beacon = RankShm.create(files.beacon)
            beacon.generation = order.generation
            self._ranks[rank] = _Rank(
                rank=rank,
                generation=order.generation,
                files=files,
                beacon=beacon,
                motion=Motion(beacon),
            )
            self._files.follow(log)
            self._nursery.send(
                ForkRank(
                    generation=order.generation,
                    rank=rank,
                    env=env,
                    log=str(log),
                    error=str(files.error),
                    stacks=str(files.stacks),
                    temp=str(files.temp),
                )
            )

    def _fail_start(self, order: Start, error: OSError) -> None:
        """Tell why a rank cannot be started: a full disk, say. Those that were end with it."""
        ranks = range(order.first_rank, order.first_rank + order.count)
        rank = next((rank for rank in ranks if rank not in self._ranks), order.first_rank)
        places = f"it has files in {self._run.logs} and {self._scratch.parent}"
        message = f"it cannot be started: {error}; {places}"
        record = {"type": type(error).__name__, "message": message}
        self._say(RankExited(generation=order.generation, rank=rank, code=1, error=record))

    def end(self, order: End) -> None:
        """End a generation's ranks; `Ended` is said when the last is gone and reported."""
        if start := self._starting.pop(order.generation, None):
            start.cancel()
        if self._is_over(order.generation):
            self._finish(order.generation)
            return
        kill = SignalRanks(generation=order.generation, signal=signal.SIGKILL)
        if order.grace_s > 0:
            if order.signal:
                self._nursery.send(replace(kill, signal=order.signal))
            self._respite(order.generation)
            self._kills[order.generation] = asyncio.get_running_loop().call_later(
                order.grace_s, self._nursery.send, kill
            )
        else:
            self._nursery.send(kill)

    def _respite(self, generation: int) -> None:
        """Do not kill ranks that were to be killed."""
        if kill := self._kills.pop(generation, None):
            kill.cancel()

    def steer(self, order: Propose | Commit) -> None:
        """Have the ranks wait at a place, or stop there: for that they get the time it takes."""
        if isinstance(order, Commit):
            self._respite(order.generation)
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

    def _beacons(self, generation: int) -> list[RankShm]:
        return [r.beacon for r in self._ranks.values() if r.generation == generation]

    async def dump(self, generation: int) -> None:
        """Have every rank write its stacks, and send what they wrote."""
        asked = {
            r.rank: Dumper(pid=r.pid, warm=r.warm, stacks=r.files.stacks)
            for r in self._ranks.values()
            if r.generation == generation and r.pid
        }
        found = await self._files.dump(asked)
        self._say(Stacks(generation=generation, ranks=fit(found, MAX_PAYLOAD - 1024)))

    # --- what their agent asks for --------------------------------------------------------------

    def pulse(self) -> Pulse:
        """Look at the ranks, and return what there is to say of them."""
        self._oom.look(time.monotonic())
        for r in self._ranks.values():
            r.motion.look(time.monotonic())
        return Pulse(
            generation=self._generation(),
            ranks=[
                [r.rank, r.beacon.step, *sample_process(r.pid)]
                for r in self._ranks.values()
                if r.pid
            ],
            pace=read_pace([r.beacon for r in self._ranks.values()]),
        )

    def _generation(self) -> int:
        return max(*self._starting, *(r.generation for r in self._ranks.values()), 0, 0)

    def close(self) -> None:
        """Kill whoever is left."""
        self._kill_all()
        for rank in self._ranks.values():
            self._files.finish(rank.files.log)

    # --- what the nursery says ------------------------------------------------------------------

    def zygote_ready(self, ready: ZygoteReady) -> None:
        self._serves_store = ready.serves_store
        if ready.cold_reason:
            self._say(Note(text=f"ranks start cold on this node: {ready.cold_reason}"))
        waiting, self._waiting_opens = self._waiting_opens or [], None
        for order in waiting:
            self.open(order)

    def rank_started(self, started: RankForked) -> None:
        rank = self._ranks[started.rank]
        rank.pid, rank.warm = started.pid, started.warm
        rank.beacon.pid = started.pid
        self._guard.watch(started.pid)
        self._say(
            RankStarted(
                generation=rank.generation, rank=rank.rank, pid=started.pid, warm=started.warm
            )
        )

    def rank_exited(self, exited: RankReaped) -> None:
        if gone := self._ranks.pop(exited.rank, None):
            self._close_rank(gone, exited.status)

    def _close_rank(self, gone: _Rank, status: int) -> None:
        self._guard.forget(gone.pid)
        self._files.finish(gone.files.log)
        shutil.rmtree(gone.files.temp, ignore_errors=True)
        if status < 0:
            remove_files([gone.pid])
        step = gone.beacon.step
        spent = read_spent(gone.beacon, gone.motion.look(time.monotonic()))
        gone.beacon.pid = 0
        gone.beacon.close()
        report = RankExited(
            generation=gone.generation,
            rank=gone.rank,
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

    def _is_over(self, generation: int) -> bool:
        there = any(r.generation == generation for r in self._ranks.values())
        return not there and not self._reporting[generation]

    def _finish(self, generation: int) -> None:
        """Say that a generation is gone; its store goes with it."""
        self._nursery.send(SignalRanks(generation=generation, signal=signal.SIGKILL))
        self._say(Ended(generation=generation))

    def zygote_lost(self, status: int) -> None:
        """Ranks die with their zygote; what they had started, we end. The next comes at once."""
        self._waiting_opens = []
        self._spawn(self._nursery.start(self))
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
        self._kill_all()
        gone, self._ranks = self._ranks, {}
        for rank in gone.values():
            self._close_rank(rank, -signal.SIGKILL)

    def _kill_all(self) -> None:
        """End whoever is left, with all that is in their groups."""
        pids = [rank.pid for rank in self._ranks.values() if rank.pid]
        groups = list_groups() if pids else {}
        for pid in pids:
            end_group(pid, groups)
        remove_files(pids)
