"""What is measured of a node between two looks."""

import itertools
import os

import pytest

from echelon.core.steady_clock import SteadyClock
from echelon.launch.protocol.rank_shm import RankShm
from echelon.launch.telemetry.gpu_stats import Gpu
from echelon.launch.telemetry.node_stats import Counters
from echelon.launch.telemetry.telemetry import (
    Look,
    RankLook,
    Waits,
    main,
    measure,
    read_clock,
    read_ranks,
)
from echelon.run.directory import RunDir


def rank(number=0, *, pid=10, step=0, data_us=0, stall_us=0, comm_us=0):
    return RankLook(
        rank=number,
        pid=pid,
        generation=1,
        step=step,
        data_us=data_us,
        stall_us=stall_us,
        comm_us=comm_us,
        mem=5.0,
    )


def look(at_s, **seen):
    return Look(time_s=1e9 + at_s, monotonic_s=at_s, **seen)


def measure_once(before, after):
    return measure(before, after, Waits())


def test_a_node_without_gpus_or_ranks():
    before = look(0, counters=Counters(busy=10, ticks=100, received=0))
    memory = {"mem": 3.0, "mem_size": 8.0, "shm": 1.0, "shm_size": 4.0}
    after = look(2, counters=Counters(busy=110, ticks=300, received=4000), memory=memory)
    sample = measure_once(before, after)
    assert sample.time_s == 1e9 + 2
    assert (sample.means["cpu"], sample.means["received"]) == (0.5, 2000)
    assert sample.peaks == {"mem": 3, "shm": 1}
    assert sample.lasts == {"mem_size": 8, "shm_size": 4}


def test_a_rank_that_trains():
    before = look(0, ranks=[rank(step=100, data_us=0, stall_us=-1)])
    now = rank(step=150, data_us=500_000, stall_us=200_000, comm_us=600_000)
    after = look(2, ranks=[now], cores={10: 1.5})
    sample = measure_once(before, after)
    told = {name: value for name, value in sample.means.items() if name.startswith("rank")}
    waits = {"rank0.data": 0.25, "rank0.stall": 0.1, "rank0.comm": 0.3}
    assert told == pytest.approx({"rank0.steps": 25, **waits, "rank0.busy": 0.35, "rank0.cpu": 1.5})
    assert sample.lasts == {"rank0.step": 150, "rank0.generation": 1}
    assert sample.peaks == {"rank0.mem": 5}


@pytest.mark.parametrize("earlier", [[], [rank(pid=9, step=700)]])
def test_a_rank_that_has_just_come_has_no_pace(earlier):
    sample = measure_once(look(0, ranks=earlier), look(1, ranks=[rank(step=3)]))
    assert "rank0.steps" not in sample.means
    assert sample.lasts["rank0.step"] == 3


def test_a_rank_that_was_resumed_has_not_taken_all_its_steps_at_once():
    sample = measure_once(look(0, ranks=[rank(step=-1)]), look(1, ranks=[rank(step=90_000)]))
    assert "rank0.steps" not in sample.means


def test_a_wait_that_is_told_when_it_is_over_is_spread():
    """Five seconds each: three for data, of which all is told at once."""
    waits, looks = Waits(), []
    for second in range(21):
        step = second // 5
        looks.append(look(second, ranks=[rank(step=step, data_us=3_000_000 * step)]))
    told = [
        measure(before, after, waits).means["rank0.data"]
        for before, after in itertools.pairwise(looks)
    ]
    assert sum(told[:18]) == pytest.approx(9.0)
    assert max(told) <= 1.0


def test_the_time_is_the_controllers(tmp_path):
    (tmp_path / "clock").write_text("1000.5")
    set_s = 0.0
    own = SteadyClock(lambda: 500.0 + set_s)
    assert read_clock(tmp_path, 7.0, own) == 1007.5
    (tmp_path / "clock").write_text("")
    set_s = 10 * 86400.0
    assert read_clock(tmp_path, 7.0, own) == pytest.approx(500.0, abs=60)


def test_a_rank_that_speaks_of_no_steps_has_none():
    sample = measure_once(look(0, ranks=[rank(step=-1)]), look(1, ranks=[rank(step=-1)]))
    assert "rank0.steps" not in sample.means


def test_a_rank_is_known_by_its_process_on_a_gpu():
    numbers = {"util": 0.9, "mem": 7.0, "mem_size": 80.0, "power": 300.0}
    counters = {"nvlink_rx": 140.0, "nvlink_tx": 8.0}
    busy = Gpu(numbers=numbers, processes={10: 6.0}, throttled=True, counters=counters)
    gpus = [Gpu(), busy]
    before = look(0, gpus=[Gpu(), Gpu(counters={"nvlink_rx": 100.0})])
    sample = measure_once(before, look(2, gpus=gpus, ranks=[rank(3)]))
    assert sample.means["gpu1.nvlink_rx"] == 20
    assert "gpu1.nvlink_tx" not in sample.means  # of which nobody knows what it was before
    assert sample.peaks["rank3.gpu_mem"] == 6
    assert sample.lasts["rank3.gpu"] == 1
    assert (sample.means["gpu1.util"], sample.means["gpu1.power"]) == (0.9, 300)
    assert (sample.means["gpu0.throttled"], sample.means["gpu1.throttled"]) == (0, 1)
    assert (sample.peaks["gpu1.mem"], sample.lasts["gpu1.mem_size"]) == (7, 80)


def test_ranks_are_seen_through_their_beacons(tmp_path):
    for number, pid in enumerate((os.getpid(), 0, -1)):
        beacon = RankShm.create(tmp_path / f"beacon-{number}")
        beacon.generation, beacon.step, beacon.pid = 2, 40 + number, pid
        beacon.close()
    (tmp_path / "beacon-x").touch()
    (tmp_path / "other").touch()
    (one,) = read_ranks(tmp_path)  # one is gone, one has not begun, one is none
    assert (one.rank, one.generation, one.step) == (0, 2, 40)
    assert one.mem > 1e6


def test_it_ends_where_its_agent_was_gone_before_it_began(tmp_path, monkeypatch):
    monkeypatch.setattr("echelon.launch.telemetry.telemetry.EVERY_S", 0.0)
    monkeypatch.setattr("echelon.launch.telemetry.telemetry._NICE", 0)
    run = RunDir.create(tmp_path, "a")
    assert main([str(run.path), "1", "0", str(tmp_path), str(2**22 + 1)]) == 0
