"""What is removed of dead processes, and what is not."""

import os
import subprocess
import sys

import pytest

from echelon.core.waiting import wait_until
from echelon.launch.zygote import leftovers
from echelon.launch.zygote.leftovers import end_group, list_groups, remove_files
from requirements import require_root

MEMORY = """\
import os, sys, time
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=64)
if os.fork() == 0:
    print(memory.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Folders in place of /dev/shm and /tmp."""
    shared, maps = tmp_path / "shm", tmp_path / "maps"
    for name, folder in (("SHARED", shared), ("MAPS", maps)):
        folder.mkdir()
        monkeypatch.setattr(leftovers, name, folder)
    return shared, maps


def test_files_that_carry_the_pid_of_a_killed_process_are_removed_and_no_others(places):
    shared, maps = places
    for name in ("torch_7_1_0", "torch_77_1_0", "torch_x", "psm_7"):
        (shared / name).touch()
    for name in ("perf-7.map", "perf-77.map"):
        (maps / name).touch()
    (maps / "perf-8.map").symlink_to(maps / "perf-77.map")
    (maps / "perf-9.map").mkdir()
    remove_files([7, 8, 9])
    assert sorted(path.name for path in shared.iterdir()) == ["psm_7", "torch_77_1_0", "torch_x"]
    assert sorted(path.name for path in maps.iterdir()) == [
        "perf-77.map",
        "perf-8.map",
        "perf-9.map",
    ]


def test_files_of_another_user_stay(places):
    require_root("to own files of another user")
    (places[1] / "perf-7.map").touch()
    os.chown(places[1] / "perf-7.map", 65534, 65534)
    remove_files([7])
    assert (places[1] / "perf-7.map").exists()


def test_shared_memory_of_a_killed_group_is_removed_by_its_tracker():
    child = subprocess.Popen(
        [sys.executable, "-c", MEMORY], stdout=subprocess.PIPE, text=True, process_group=0
    )
    with child:
        try:
            path = leftovers.SHARED / child.stdout.readline().strip()
            assert path.exists()
            end_group(child.pid, list_groups())
            assert child.wait(10) == -9
            assert wait_until(lambda: not path.exists(), timeout_s=10)
            assert wait_until(lambda: child.pid not in list_groups(), timeout_s=10)
        finally:
            end_group(child.pid, {})
