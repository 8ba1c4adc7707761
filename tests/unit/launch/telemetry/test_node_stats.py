"""How busy a node is, from recorded tables of the kernel."""

from pathlib import Path

import pytest

from echelon.launch.telemetry.node_stats import (
    Counters,
    parse_disks,
    parse_memory,
    parse_network,
    parse_processors,
    process_memory,
    rates,
    read_counters,
    read_memory,
)

STAT = "cpu  100 20 30 800 40 5 5 0 7 0\ncpu0 50 10 15 400 20 3 2 0 3 0\nintr 1 2\n"
MEMINFO = "MemTotal:       24000 kB\nMemFree:   100 kB\nMemAvailable:   18000 kB\n"
DISKS = """\
   8       0 sda 10 0 2000 0 20 0 4000 0 0 0 0
   8       1 sda1 10 0 2000 0 20 0 4000 0 0 0 0
 259       0 nvme0n1 1 0 8 0 1 0 16 0 0 0 0
 259       1 nvme0n1p1 1 0 8 0 1 0 16 0 0 0 0
 253       0 dm-0 10 0 2000 0 20 0 4000 0 0 0 0
   7       0 loop0 torn
"""
NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0: 1500 3 0 0 0 0 0 0 700 2 0 0 0 0 0 0
   ib0:50000 3 0 0 0 0 0 0 20000 2 0 0 0 0 0 0
"""


def test_tables_of_the_kernel():
    assert parse_processors(STAT) == (160, 1000)
    assert parse_memory(MEMINFO) == {"mem": 6000 * 1024, "mem_size": 24000 * 1024}
    assert parse_disks(DISKS, {"sda", "nvme0n1", "loop0"}) == (2008 * 512, 4016 * 512)
    assert parse_network(NETWORK) == (51500, 20700)


@pytest.mark.parametrize("parse", [parse_processors, parse_network])
def test_tables_that_are_not_there(parse):
    assert parse("") == (0, 0)
    assert parse_memory("") == {"mem": 0, "mem_size": 0}


def test_rates_are_differences():
    before = Counters(busy=100, ticks=1000, disk_read=10, received=1000, sent=5000)
    after = Counters(busy=150, ticks=1200, disk_read=4106, received=3000, sent=0)
    assert rates(before, after, 2.0) == {
        "cpu": 0.25,
        "disk_read": 2048,
        "disk_written": 0,
        "received": 1000,
        "sent": 0,  # its interface was set up anew
    }
    assert rates(before, before, 0.0)["cpu"] == 0


def test_a_real_kernel_tells_all_of_it(tmp_path):
    counters = read_counters()
    assert 0 < counters.busy < counters.ticks
    memory = read_memory()
    assert 0 < memory["mem"] < memory["mem_size"]
    assert 0 <= memory["shm"] <= memory["shm_size"]
    assert process_memory(1) > 0
    nothing = tmp_path / "none"
    assert read_counters(nothing, nothing) == Counters()
    assert read_memory(nothing, nothing) == {"mem": 0, "mem_size": 0}
    assert process_memory(1, nothing) == 0
    assert Path("/proc/stat").exists()
