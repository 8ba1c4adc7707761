"""A process beside each agent that measures the node once a second.

It is a separate process so that a driver that hangs, or a library that crashes, does not affect the
run. About ranks it reads what they share with their agent; it does not involve them.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.core.steady_clock import SteadyClock
from echelon.launch.protocol.rank_shm import RankShm
from echelon.launch.protocol.scratch_files import CONTROLLER_CLOCK, TELEMETRY_NOTES
from echelon.launch.telemetry.gpu_stats import Gpu, Gpus, find_nvml
from echelon.launch.telemetry.node_stats import (
    Burned,
    Counters,
    cores_by_group,
    memory_by_group,
    process_memory,
    rates,
    read_burned,
    read_counters,
    read_memory,
)
from echelon.run.directory import RunDir
from echelon.run.series import Sample, SeriesWriter

EVERY_S = 1.0
_SELDOM = 10
"""Slow queries are made once in this many samples."""
_NICE = 10
_PEAKS = ("mem", "shm")
IDLE_S = 300.0
"""How long a rank's GPU may be idle before users are told."""
_IDLE_SHARE = 0.02
"""Utilization up to which a GPU counts as idle."""


@frozen
class RankLook:
    """A rank, from its shared memory and the kernel."""

    rank: int
    pid: int
    generation: int
    step: int
    data_us: int
    stall_us: int
    comm_us: int
    mem: float


@frozen
class Look:
    """Everything that is read at one moment."""

    time_s: float
    """Since the epoch."""
    monotonic_s: float
    counters: Counters = field(default_factory=Counters)
    memory: Mapping[str, float] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    ranks: Sequence[RankLook] = ()
    cores: Mapping[int, float] = field(default_factory=dict)
    """By pid of a rank: how many CPUs it and its children keep busy; sampled rarely."""
    held: Mapping[int, float] = field(default_factory=dict)
    """By pid of a rank: bytes of memory of it and its children; sampled rarely."""


class Waits:
    """Converts waiting times into shares of elapsed time.

    A rank reports a wait when it is over, so a sample of one second may contain a longer wait: the
    excess is carried over to the next samples.
    """

    def __init__(self) -> None:
        self._carried_s: dict[tuple[int, int, str], float] = {}

    def share(
        self, rank: "RankLook", name: str, before_us: int, after_us: int, elapsed_s: float
    ) -> float:
        key = rank.rank, rank.pid, name
        waited_s = self._carried_s.pop(key, 0.0)
        waited_s += max(0, after_us - max(0, before_us)) / 1e6
        shown_s = min(waited_s, elapsed_s)
        if waited_s > shown_s:
            self._carried_s[key] = waited_s - shown_s
        return shown_s / elapsed_s


def measure(before: Look, after: Look, waits: Waits) -> Sample:
    """Return the sample for the time between two looks.

    Names are `cpu`, `gpu0.util`, `rank3.step_s`: docs/telemetry.md lists them.
    """
    elapsed_s = after.monotonic_s - before.monotonic_s
    means = rates(before.counters, after.counters, elapsed_s)
    peaks = {name: value for name, value in after.memory.items() if name in _PEAKS}
    lasts = {name: value for name, value in after.memory.items() if name not in _PEAKS}
    for index, gpu in enumerate(after.gpus):
        for name, value in gpu.numbers.items():
            kept = lasts if name in ("mem_size", "power_limit", "clock_most", "ecc") else means
            (peaks if name == "mem" else kept)[f"gpu{index}.{name}"] = value
        means[f"gpu{index}.throttled"] = float(gpu.throttled)
        for name, value in gpu.counters.items():
            known_value = _counters_of(before, index).get(name)
            if known_value is not None and elapsed_s > 0:
                means[f"gpu{index}.{name}"] = max(0.0, value - known_value) / elapsed_s
    earlier = {(rank.rank, rank.pid): rank for rank in before.ranks}
    owners = {pid: index for index, gpu in enumerate(after.gpus) for pid in gpu.processes}
    for rank in after.ranks:
        name = f"rank{rank.rank}"
        peaks[f"{name}.mem"] = rank.mem
        if rank.pid in after.cores:
            means[f"{name}.cpu"] = after.cores[rank.pid]
        if rank.pid in after.held:
            peaks[f"{name}.mem_all"] = after.held[rank.pid]
        lasts |= {f"{name}.step": rank.step, f"{name}.generation": rank.generation}
        if rank.pid in owners:
            lasts[f"{name}.gpu"] = owners[rank.pid]
            peaks[f"{name}.gpu_mem"] = after.gpus[owners[rank.pid]].processes[rank.pid]
        if known := earlier.get((rank.rank, rank.pid)):
            pace = _pace(known, rank, elapsed_s, waits)
            means |= {f"{name}.{what}": value for what, value in pace.items()}
    return Sample(time_s=after.time_s, means=means, peaks=peaks, lasts=lasts)


def _counters_of(look: Look, gpu: int) -> Mapping[str, float]:
    return look.gpus[gpu].counters if gpu < len(look.gpus) else {}


def _pace(before: RankLook, after: RankLook, elapsed_s: float, waits: Waits) -> dict[str, float]:
    """Return steps per second, and the shares of time spent waiting."""
    if elapsed_s <= 0 or after.step < 0 or before.step < 0:
        return {}  # its first report may be of a step that was completed long before
    shares = {
        name: waits.share(
            after, name, getattr(before, f"{name}_us"), getattr(after, f"{name}_us"), elapsed_s
        )
        for name in ("data", "stall", "comm")
    }
    return {
        "steps": max(0, after.step - before.step) / elapsed_s,
        **shares,
        "busy": max(0.0, 1.0 - sum(shares.values())),
    }


class IdleGpus:
    """Detects GPUs that ranks hold and do not use, from samples once a second. Pure."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, float], float] = {}
        """By rank and generation: since when its GPU is idle."""
        self._told: set[tuple[str, float]] = set()

    def feed(self, sample: Sample) -> list[str]:
        """Return notes for users, one per rank and generation."""
        found = []
        for name, gpu in sample.lasts.items():
            rank, _, what = name.partition(".")
            if what != "gpu" or not rank.startswith("rank"):
                continue
            who = rank, sample.lasts.get(f"{rank}.generation", 0.0)
            if sample.means.get(f"gpu{int(gpu)}.util", 1.0) > _IDLE_SHARE:
                self._since_s.pop(who, None)
            elif (
                sample.time_s - self._since_s.setdefault(who, sample.time_s) >= IDLE_S
                and who not in self._told
            ):
                self._told.add(who)
                found.append(
                    f"GPU {int(gpu)} of rank {rank.removeprefix('rank')} has been idle for "
                    f"{IDLE_S / 60:.0f} minutes: see echelon watch"
                )
        return found


class Watcher:
    """Reads the kernel's tables, the GPU driver and the ranks' shared memory."""

    def __init__(self, scratch: Path, gpus: Gpus) -> None:
        self._scratch, self._gpus = scratch, gpus
        self._clock = SteadyClock()
        self._looks = 0
        self._burned: dict[int, Burned] = {}
        self._burned_s = float("-inf")

    def look(self) -> Look:
        self._looks += 1
        ranks = read_ranks(self._scratch)
        now_s = time.monotonic()
        return Look(
            time_s=read_clock(self._scratch, now_s, self._clock),
            monotonic_s=now_s,
            counters=read_counters(),
            memory=read_memory(),
            gpus=self._gpus.look(thorough=self._looks % _SELDOM == 1),
            ranks=ranks,
            **self._look_at_groups(ranks),
        )

    def _look_at_groups(self, ranks: Sequence[RankLook]) -> dict[str, dict[int, float]]:
        if self._looks % _SELDOM != 1:
            return {}
        now_s, found = time.monotonic(), read_burned({rank.pid for rank in ranks})
        used = cores_by_group(self._burned, found, now_s - self._burned_s)
        before_s, self._burned, self._burned_s = self._burned_s, found, now_s
        return {"cores": used if before_s > 0 else {}, "held": memory_by_group(found)}


def read_clock(scratch: Path, now_s: float, own: SteadyClock) -> float:
    """Return the controller's time of day: clocks of nodes differ, and may be changed.

    Before the first ranks it is unknown: this node's `own` clock has to do.
    """
    try:
        return float((scratch / CONTROLLER_CLOCK).read_text()) + now_s
    except (OSError, ValueError):
        return own.now()


def read_ranks(scratch: Path) -> list[RankLook]:
    """Return the running ranks whose shared memory is in an agent's scratch folder."""
    found = []
    for path in sorted(scratch.glob("beacon-*")):
        with contextlib.suppress(OSError, ValueError):
            shm = RankShm.open(path)
            try:
                if shm.pid > 0:
                    found.append(_read_rank(int(path.name.removeprefix("beacon-")), shm))
            finally:
                shm.close()
    return found


def _read_rank(rank: int, shm: RankShm) -> RankLook:
    return RankLook(
        rank=rank,
        pid=shm.pid,
        generation=shm.generation,
        step=shm.step,
        data_us=shm.data_us,
        stall_us=shm.stall_us,
        comm_us=shm.comm_us,
        mem=process_memory(shm.pid),
    )


def main(arguments: list[str]) -> int:
    """Run `telemetry RUN ATTEMPT NODE SCRATCH AGENT`: measure until the agent exits."""
    path, attempt, node, scratch, agent = arguments
    run = RunDir.open(Path(path))
    os.nice(_NICE)
    watcher = Watcher(Path(scratch), Gpus(find_nvml()))
    run.telemetry(int(attempt), int(node), 0).parent.mkdir(mode=0o700, exist_ok=True)
    writer = SeriesWriter(lambda level: run.telemetry(int(attempt), int(node), level))
    idle, notes = IdleGpus(), Path(scratch) / TELEMETRY_NOTES
    before, due_s, waits = watcher.look(), time.monotonic(), Waits()
    while True:
        due_s = max(due_s + EVERY_S, time.monotonic())  # missed samples are not made up for
        time.sleep(max(0.0, due_s - time.monotonic()))
        if os.getppid() != int(agent):  # it may have exited before we started
            return 0
        after = watcher.look()
        with contextlib.suppress(OSError):  # samples are lost while storage is unavailable or full
            writer.append(sample := measure(before, after, waits))
            for text in idle.feed(sample):
                with notes.open("a") as file:
                    file.write(f"{text}\n")
        before = after
