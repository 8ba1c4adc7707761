"""The ranks of one node, as their agent manages them.

It handles the controller's orders and the zygote's reports, and tells the controller the result.
"""

import asyncio
import contextlib
import json
import logging
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
from echelon.launch.agent.rank_progress import (
    Motion,
    read_pace,
    read_spent,
    read_spent_so_far,
)
from echelon.launch.agent.rendezvous_sockets import RendezvousSockets
from echelon.launch.agent.traces import ask_nccl, read_record, reduce_record
from echelon.launch.agent.zygote_client import ZygoteClient
from echelon.launch.protocol.collective_trace import encode_traces
from echelon.launch.protocol.messages import (
    UNSTARTED,
    Commit,
    End,
    Ended,
    ForkRank,
    Imported,
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
    StoreUsed,
    Traces,
    ZygoteLost,
    ZygoteReady,
)
from echelon.launch.protocol.nccl_counts import encode_counts
from echelon.launch.protocol.rank_environment import RankFiles, rank_environment, rank_files
from echelon.launch.protocol.rank_shm import RankShm
from echelon.launch.protocol.scratch_files import CONTROLLER_CLOCK
from echelon.launch.protocol.wire import MAX_PAYLOAD
from echelon.launch.zygote.leftovers import end_groups, remove_files
from echelon.run.directory import RunDir
from echelon.run.tracker import find_mlflow

_log = logging.getLogger(__name__)
_PLACE_POLL_S = 0.005
_ROOM = MAX_PAYLOAD - 1024


@dataclass(slots=True)
class _Rank:
    """A rank that was ordered and has not exited."""

    rank: int
    generation: int
    files: RankFiles
    shm: RankShm
    motion: Motion
    pid: int = 0
    warm: bool = False
    record: bytes = b""
    """The last record of its collectives."""


class LocalWorkers:
    """See the module."""

    def __init__(
        self,
        *,
        run: RunDir,
        attempt: int,
        environ: Mapping[str, str],
        scratch: Path,
        zygote: ZygoteClient,
        guard: Guard,
        files: AgentFiles,
        say: Callable[[Message], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._run, self._attempt = run, attempt
        self._environ, self._scratch = environ, scratch
        self._zygote, self._guard, self._files = zygote, guard, files
        self._say = say
        """Sends a message to the controller."""
        self._spawn = spawn
        """Runs a task in the background; the agent handles its failure."""
        self._ranks: dict[int, _Rank] = {}
        self._kills: dict[int, asyncio.TimerHandle] = {}
        """By generation: the kill that is due when its grace period is over."""
        self._starting: dict[int, asyncio.Task[None]] = {}
        """By generation: a start in progress, which may wait for storage."""
        self._reporting: Counter[int] = Counter()
        """By generation: number of ranks that have exited and are not reported yet."""
        self._sockets = RendezvousSockets()
        self._serves_store = False
        self._waiting: list[Open | Start] | None = []
        """Orders that wait until a zygote is ready; None once it is."""
        self._oom = OomWatch()

    # --- the controller's orders ----------------------------------------------------------------

    def open(self, order: Open) -> None:
        """Bind sockets for the rendezvous, and report their ports."""
        if self._waiting is not None:
            self._waiting.append(order)
            return
        ports = self._sockets.open(order.addresses)
        self._say(Opened(generation=order.generation, ports=ports, served=self._serves_store))

    def start(self, order: Start) -> None:
        """Start a generation's ranks on this node, as soon as storage responds."""
        if self._waiting is not None:
            self._waiting.append(order)
            return
        self._starting[order.generation] = self._spawn(self._start(order))

    async def _start(self, order: Start) -> None:
        self._files.set_clock(order.now_s)
        with contextlib.suppress(OSError):  # only telemetry reads it
            (self._scratch / CONTROLLER_CLOCK).write_text(repr(order.now_s - time.monotonic()))
        if listener := self._sockets.take(order.address):
            if order.served:
                self._zygote.send(ServeStore(generation=order.generation), listener)
            listener.close()
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
        mlflow = find_mlflow(self._run) if order.first_rank == 0 else ""
        for local_rank in range(order.count):
            rank = order.first_rank + local_rank
            log = self._run.rank_log(attempt=self._attempt, generation=order.generation, rank=rank)
            files = rank_files(log, self._scratch, rank)
            env = rank_environment(
                order,
                local_rank,
                files,
                interface=interface,
                environ=self._environ,
                mlflow=mlflow,
            )
            shm = RankShm.create(files.rank_shm)
            shm.generation = order.generation
            self._ranks[rank] = _Rank(
                rank=rank,
                generation=order.generation,
                files=files,
                shm=shm,
                motion=Motion(shm),
            )
            self._files.follow(log)
            self._zygote.send(
                ForkRank(
                    generation=order.generation,
                    rank=rank,
                    env=env,
                    log=str(log),
                    error=str(files.error),
                    stacks=str(files.stacks),
                    trace=str(files.trace),
                    temp=str(files.temp),
                )
            )

    def _fail_start(self, order: Start, error: OSError) -> None:
        """Report that a rank cannot be started, for instance because a disk is full."""
        ranks = range(order.first_rank, order.first_rank + order.count)
        rank = next((rank for rank in ranks if rank not in self._ranks), order.first_rank)
        folders = f"{self._run.logs} and {self._scratch.parent}"
        message = f"cannot start it: {error}; its files are in {folders}"
        record = {"type": type(error).__name__, "message": message}
        self._say(RankExited(generation=order.generation, rank=rank, code=1, error=record))

    def end(self, order: End) -> None:
        """End a generation's ranks; `Ended` follows when the last exit is reported."""
        if start := self._starting.pop(order.generation, None):
            start.cancel()
        if self._waiting:
            self._waiting = [one for one in self._waiting if one.generation != order.generation]
        if self._is_over(order.generation):
            self._finish(order.generation)
            return
        kill = SignalRanks(generation=order.generation, signal=signal.SIGKILL)
        if order.grace_s > 0:
            if order.signal:
                self._zygote.send(replace(kill, signal=order.signal))
            self._cancel_kill(order.generation)
            self._kills[order.generation] = asyncio.get_running_loop().call_later(
                order.grace_s, self._zygote.send, kill
            )
        else:
            self._zygote.send(kill)

    def _cancel_kill(self, generation: int) -> None:
        if kill := self._kills.pop(generation, None):
            kill.cancel()

    def steer(self, order: Propose | Commit) -> None:
        """Have the ranks wait at a place, or stop there: a committed stop has no time limit."""
        if isinstance(order, Commit):
            self._cancel_kill(order.generation)
        for shm in self._list_shm(order.generation):
            if isinstance(order, Commit):
                shm.committed = order.place
            elif order.place:
                shm.proposed = order.place
        if order.generation in {*self._starting, *self._unstarted()}:
            # No rank runs yet, so none will reach any place: there is nothing to agree on.
            nowhere = Place(
                generation=order.generation, proposed=order.place, furthest=-1, waiting=False
            )
            self._say(nowhere)
        elif isinstance(order, Propose):
            self._spawn(self._answer_proposal(order))

    async def _answer_proposal(self, order: Propose) -> None:
        here = await await_place(
            lambda: self._list_shm(order.generation), order.generation, order.place
        )
        if here:
            self._say(here)

    def _list_shm(self, generation: int) -> list[RankShm]:
        return [r.shm for r in self._ranks.values() if r.generation == generation]

    async def read_traces(self, generation: int) -> None:
        """Send what the ranks have recorded about their collectives.

        The agent of rank 0 also asks NCCL, which answers for all ranks.
        """
        here = [r for r in self._ranks.values() if r.generation == generation]
        warm = [r for r in here if r.warm]
        pids = {r.rank: r.pid for r in here}
        counts, answers = await asyncio.gather(
            ask_nccl(self._environ, pids if 0 in pids else {}),
            asyncio.gather(*(read_record(r.files.trace) for r in warm)),
        )
        found = {}
        for rank, answer in zip(warm, answers, strict=True):
            if answer is not None:
                rank.record = answer
                found[rank.rank] = reduce_record(answer, now_s=time.time())
        encoded = encode_counts(counts, _ROOM // 2)
        ranks = encode_traces(found, _ROOM - len(json.dumps(encoded)))
        self._say(Traces(generation=generation, ranks=ranks, counts=encoded))

    async def dump(self, generation: int) -> None:
        """Have every rank write its stacks, and send what they wrote.

        The last records of their collectives are written beside it.
        """
        here = [r for r in self._ranks.values() if r.generation == generation and r.pid]
        asked = {r.rank: Dumper(pid=r.pid, warm=r.warm, stacks=r.files.stacks) for r in here}
        for rank in here:
            if rank.record:
                self._files.write(rank.files.collectives, rank.record)
        found = await self._files.dump(asked)
        self._say(Stacks(generation=generation, ranks=fit(found, _ROOM)))

    # --- for the agent --------------------------------------------------------------------------

    def pulse(self) -> Pulse:
        """Sample the ranks, and return the heartbeat that describes them."""
        self._oom.look(time.monotonic())
        for r in self._ranks.values():
            r.motion.look(time.monotonic())
        generation = self._generation()
        zygote = sample_process(self._zygote.pid)
        return Pulse(
            generation=generation,
            ranks=[
                *([rank, UNSTARTED, *zygote] for rank in self._unstarted().get(generation, ())),
                *(
                    [r.rank, r.shm.step, *sample_process(r.pid)]
                    if r.pid
                    else [r.rank, UNSTARTED, *zygote]
                    for r in self._ranks.values()
                ),
            ],
            pace=read_pace([r.shm for r in self._ranks.values()]),
            spent=read_spent_so_far(r.shm for r in self._ranks.values()),
        )

    def _generation(self) -> int:
        known = (*self._starting, *self._unstarted())
        return max(*known, *(r.generation for r in self._ranks.values()), 0, 0)

    def _unstarted(self) -> dict[int, range]:
        """Return by generation which ranks wait for a zygote. The first node has rank 0."""
        return {
            one.generation: range(one.first_rank, one.first_rank + one.count)
            if isinstance(one, Start)
            else range(1)
            for one in self._waiting or ()
        }

    def close(self) -> None:
        """Kill the remaining ranks."""
        self._sockets.close()
        end_groups([rank.pid for rank in self._ranks.values() if rank.pid])
        for rank in self._ranks.values():
            self._files.finish(rank.files.log)

    # --- reports of the zygote ------------------------------------------------------------------

    def zygote_ready(self, ready: ZygoteReady) -> None:
        _log.info(
            "the zygote is ready: pid %d, imports took %.2f s", self._zygote.pid, ready.import_s
        )
        self._serves_store = ready.serves_store
        if ready.cold_reason:
            self._say(Note(text=f"ranks start cold on this node: {ready.cold_reason}"))
        if ready.unstaged:
            self._say(Note(text=f"warning: ranks do not use the stage: {ready.unstaged}"))
        self._say(Imported(seconds=round(ready.import_s, 2), waited_s=round(ready.waited_s, 2)))
        waiting, self._waiting = self._waiting or [], None
        for order in waiting:
            if isinstance(order, Open):
                self.open(order)
            else:
                self.start(order)

    def rank_started(self, started: RankForked) -> None:
        rank = self._ranks[started.rank]
        rank.pid, rank.warm = started.pid, started.warm
        rank.shm.pid = started.pid
        self._guard.watch(started.pid)
        self._say(
            RankStarted(
                generation=rank.generation, rank=rank.rank, pid=started.pid, warm=started.warm
            )
        )

    def rank_exited(self, exited: RankReaped) -> None:
        level = logging.INFO if exited.status else logging.DEBUG
        _log.log(level, "rank %d has exited with status %d", exited.rank, exited.status)
        if gone := self._ranks.pop(exited.rank, None):
            self._close_rank(gone, exited.status)

    def store_used(self, used: StoreUsed) -> None:
        self._say(used)

    def _close_rank(self, gone: _Rank, status: int) -> None:
        self._guard.forget(gone.pid)
        self._files.finish(gone.files.log)
        shutil.rmtree(gone.files.temp, ignore_errors=True)
        gone.files.trace.unlink(missing_ok=True)
        if status < 0:
            remove_files([gone.pid])
        step, saved = gone.shm.step, gone.shm.saved
        spent = read_spent(gone.shm, gone.motion.look(time.monotonic()))
        gone.shm.pid = 0
        gone.shm.close()
        report = RankExited(
            generation=gone.generation,
            rank=gone.rank,
            code=max(0, status),
            signal=max(0, -status),
            step=step,
            saved=saved,
            out_of_memory=self._oom.happened(time.monotonic()),
            spent=spent,
        )
        self._reporting[gone.generation] += 1
        self._spawn(self._report(report, gone.files))

    async def _report(self, report: RankExited, files: RankFiles) -> None:
        """Report an exit, with the end of the rank's log and its exception if it failed."""
        if report.code or report.signal:
            error, tail = await self._files.read_end(files)
            report = replace(report, error=error, tail=tail)
        self._say(report)
        self._reporting[report.generation] -= 1
        if self._is_over(report.generation):
            self._finish(report.generation)

    def _is_over(self, generation: int) -> bool:
        there = any(r.generation == generation for r in self._ranks.values())
        return not there and not self._reporting[generation]

    def _finish(self, generation: int) -> None:
        """End a generation's store, and report that all of its ranks have exited."""
        self._zygote.send(SignalRanks(generation=generation, signal=signal.SIGKILL))
        self._say(Ended(generation=generation))

    def zygote_lost(self, status: int) -> None:
        """Clean up after ranks, which die with their zygote, and start the next zygote at once.

        Orders that no zygote has received yet are for the next one.
        """
        _log.info("the zygote died with status %d; starting another one", status)
        if self._waiting is not None:
            self._say(Note(text="the zygote, which starts ranks, died before it was ready"))
        self._waiting = self._waiting or []
        self._spawn(self._zygote.start(self))
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
            start.cancel()  # its store died with the zygote
        self._starting.clear()
        end_groups([rank.pid for rank in self._ranks.values() if rank.pid])
        gone, self._ranks = self._ranks, {}
        for rank in gone.values():
            self._close_rank(rank, -signal.SIGKILL)


async def await_place(
    list_shm: Callable[[], list[RankShm]], generation: int, place: int
) -> Place | None:
    """Wait until a node's ranks have reached a place or passed it; None if another is proposed.

    Place 0 asks how far they are, and is answered at once.
    """
    while True:
        found = list_shm()
        if place and any(shm.proposed != place for shm in found):
            return None
        # Read `passed` before `waiting`: a rank writes them in the opposite order.
        passed = [shm.passed for shm in found]
        furthest = -1 if min(passed, default=0) < 0 else max(passed, default=0)
        waiting = all(shm.waiting == place for shm in found)
        if furthest < 0 or all(count >= place for count in passed):
            return Place(generation=generation, proposed=place, furthest=furthest, waiting=waiting)
        await asyncio.sleep(_PLACE_POLL_S)
