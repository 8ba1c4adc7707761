"""A process beside each agent that measures the node once a second: `telemetry RUN ATTEMPT NODE`.

It is a process of its own so that a driver that hangs, or a library that crashes, costs the run
nothing. Of the ranks it sees what they share with their agent; it asks them nothing.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echelon.launch.protocol.rank_shm import RankShm
from echelon.launch.protocol.telemetry_files import CLOCK, SAID
from echelon.launch.telemetry.gpu_stats import Gpu, Gpus, find_nvml
from echelon.launch.telemetry.idle_gpus import IdleGpus
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
"""What takes long to ask is asked every so many times."""
_NICE = 10
_PEAKS = ("mem", "shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLook:
    """What a rank's beacon, and the kernel, say of it."""

    rank: int
    pid: int
    generation: int
    step: int
    data_us: int
    stall_us: int
    comm_us: int
    mem: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """All that is seen at one moment."""

    time_s: float
    """Since the epoch."""
    monotonic_s: float
    counters: Counters = field(default_factory=Counters)
    memory: Mapping[str, float] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    ranks: Sequence[RankLook] = ()
    cores: Mapping[int, float] = field(default_factory=dict)
    """By pid of a rank: how many processors it and its children keep busy; looked for seldom."""
    held: Mapping[int, float] = field(default_factory=dict)
    """By pid of a rank: bytes that it and its children hold; likewise."""


class Waits:
    """Turns waits into shares of the time in which they were.

    A wait is told when it is over, so more than a second of it may be told in one second: what does
    not fit is told with the next.
    """

    def __init__(self) -> None:
        self._untold_s: dict[tuple[int, int, str], float] = {}

    def share(
        self, rank: "RankLook", name: str, before_us: int, after_us: int, elapsed_s: float
    ) -> float:
        key = rank.rank, rank.pid, name
        waited_s = self._untold_s.pop(key, 0.0)
        waited_s += max(0, after_us - max(0, before_us)) / 1e6
        told_s = min(waited_s, elapsed_s)
        if waited_s > told_s:
            self._untold_s[key] = waited_s - told_s
        return told_s / elapsed_s


def measure(before: Look, after: Look, waits: Waits) -> Sample:
    """Return what went on between two looks.

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
        means[f"gpu{index}.throttled"] = float(bool(gpu.throttled))
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
    """Return steps per second, and the shares of the time that were spent waiting."""
    if elapsed_s <= 0 or after.step < 0 or before.step < 0:
        return {}  # its first word may be of a step that was taken long before it came
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


class Watcher:
    """Looks, with the kernel's and the driver's eyes."""

    def __init__(self, scratch: Path, gpus: Gpus) -> None:
        self._scratch, self._gpus = scratch, gpus
        self._looks = 0
        self._burned: dict[int, Burned] = {}
        self._burned_s = float("-inf")

    def look(self) -> Look:
        self._looks += 1
        ranks = read_ranks(self._scratch)
        now_s = time.monotonic()
        return Look(
            time_s=read_clock(self._scratch, now_s),
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


def read_clock(scratch: Path, now_s: float) -> float:
    """Return the controller's time: nodes' own may be minutes apart, or be set."""
    try:
        return float((scratch / CLOCK).read_text()) + now_s
    except (OSError, ValueError):
        return time.time()


def read_ranks(scratch: Path) -> list[RankLook]:
    """Return the ranks that an agent has in its folder, and that live."""
    found = []
    for path in sorted(scratch.glob("beacon-*")):
        with contextlib.suppress(OSError, ValueError):
            beacon = RankShm.open(path)
            try:
                if beacon.pid > 0:
                    found.append(_read_rank(int(path.name.removeprefix("beacon-")), beacon))
            finally:
                beacon.close()
    return found


def _read_rank(rank: int, beacon: RankShm) -> RankLook:
    return RankLook(
        rank=rank,
        pid=beacon.pid,
        generation=beacon.generation,
        step=beacon.step,
        data_us=beacon.data_us,
        stall_us=beacon.stall_us,
        comm_us=beacon.comm_us,
        mem=process_memory(beacon.pid),
    )


def main(arguments: list[str]) -> int:
    """Measure until the agent is gone: `telemetry RUN ATTEMPT NODE SCRATCH AGENT`."""
    path, attempt, node, scratch, agent = arguments
    run = RunDir.open(Path(path))
    os.nice(_NICE)
    watcher = Watcher(Path(scratch), Gpus(find_nvml()))
    run.telemetry(int(attempt), int(node), 0).parent.mkdir(mode=0o700, exist_ok=True)
    writer = SeriesWriter(lambda level: run.telemetry(int(attempt), int(node), level))
    idle, said = IdleGpus(), Path(scratch) / SAID
    before, due_s, waits = watcher.look(), time.monotonic(), Waits()
    while True:
        due_s = max(due_s + EVERY_S, time.monotonic())  # what was missed stays missed
        time.sleep(max(0.0, due_s - time.monotonic()))
        if os.getppid() != int(agent):  # it may have gone before we began
            return 0
        after = watcher.look()
        with contextlib.suppress(OSError):  # storage that is away, or full, costs samples
            writer.append(sample := measure(before, after, waits))
            for text in idle.feed(sample):
                with said.open("a") as file:
                    file.write(f"{text}\n")
        before = after
