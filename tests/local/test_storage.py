"""Storage that does not answer for a while, or is full: a real file system, frozen by the kernel.

Whoever writes to a frozen file system waits, as with a file server that is away.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.launch.controller.generation import END_S
from echelon.launch.protocol.link import NEAR_SILENCE_S
from echelon.run.event_log import EventReader
from echelon.run.events import ControllerEvent
from local.liverun import live_run
from requirements import SBIN, do_without, require, require_root

OPTIONS = ["--set=preload=", "--procs=1", "--restarts=1"]
SCRIPT = """\
import os, time
from pathlib import Path
rank, generation = os.environ["RANK"], int(os.environ["ECHELON_GENERATION"])
Path(f"part-{rank}").write_text(str(os.getpid()))
Path(f"part-{rank}").rename(f"ready-{rank}" if generation == 0 else f"again-{rank}")
while not Path("go").exists():
    if rank == "0" and not Path("hush").exists():
        print("a line that keeps log, agent and disk at work", flush=True)
    time.sleep(0.05)
"""
"""Its first rank writes; neither writes once there is a file `hush`."""


def system(*argv):
    path = f"{os.environ['PATH']}:{SBIN}"
    subprocess.run(argv, check=True, timeout=60, capture_output=True, env={"PATH": path})


class Disk:
    """A small file system on a loop device."""

    def __init__(self, image, place):
        self.place = place
        with image.open("wb") as file:
            file.truncate(32 << 20)
        place.mkdir()
        system("mkfs.ext4", "-q", "-m0", str(image))
        system("mount", "-o", "loop", str(image), str(place))
        (place / "lost+found").rmdir()

    @contextmanager
    def frozen(self):
        system("fsfreeze", "-f", str(self.place))
        try:
            yield
        finally:
            system("fsfreeze", "-u", str(self.place))

    @contextmanager
    def full(self):
        filler = self.place / ".filler"
        with filler.open("wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    assert file.write(bytes(size))
                except OSError:
                    size //= 2
        try:
            yield
        finally:
            filler.unlink()

    def clear(self):
        """Unmount it: a process that is ending has no command line any more, but open files."""

        def is_free():
            try:
                system("umount", str(self.place))
            except subprocess.CalledProcessError as error:
                if b"busy" not in error.stderr:
                    raise
                return False
            return True

        assert wait_until(is_free, timeout_s=30)


@pytest.fixture
def disk(tmp_path):
    """Mounted where `echelon run` keeps its runs."""
    require("mkfs.ext4", "mount", "fsfreeze")
    require_root("it mounts a file system")
    try:
        disk = Disk(tmp_path / "image", tmp_path / "runs")
    except subprocess.CalledProcessError as error:
        if b"loop" in error.stderr:  # no package brings it: the kernel has it, or has not
            do_without("needs a loop device")
        raise
    yield disk
    disk.clear()


def events(run):
    return EventReader(run.path / "events" / "controller-1.jsonl", ControllerEvent).read()


def kinds(run):
    return [record.event.kind for record in events(run)]


def outcome(run):
    return json.loads((run.path / "attempts" / "1" / "outcome.json").read_text())


def state_of(pid):
    """The kernel's letter for what a process does: D is waiting for storage."""
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(") ")[2].split()[0]


def pids(run):
    return {process.pid for process in run.processes()}


def await_again(run):
    """Wait for the ranks of the second generation."""
    again = [run.folder / f"again-{rank}" for rank in range(2)]
    assert wait_until(lambda: all(p.exists() for p in again), timeout_s=30), run.output


def await_held(pid):
    assert wait_until(lambda: state_of(pid) == "D", timeout_s=10)


def await_held_thread(pid):
    """Wait until storage holds a thread of a process that goes on otherwise."""

    def is_held():
        return any(state_of(f"{pid}/task/{thread.name}") == "D" for thread in threads.iterdir())

    threads = Path(f"/proc/{pid}/task")
    assert wait_until(is_held, timeout_s=10)


def test_storage_that_hangs_for_a_while_costs_no_rank(tmp_path, disk):
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        writer, other = run.await_ranks(range(2))
        with disk.frozen():
            await_held(writer)
            time.sleep(NEAR_SILENCE_S + 2)
            assert run.command.poll() is None, run.output
            assert {writer, other} <= pids(run)
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.output
        assert kinds(run).count("rank") == 2
        assert not {"restart", "lost", "paused", "lost events"} & set(kinds(run))


@pytest.mark.full
def test_a_rank_that_dies_while_storage_hangs_is_started_again(tmp_path, disk):
    """The other one is held by storage until it is back: not even a kill ends it."""
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        writer, other = run.await_ranks(range(2))
        with disk.frozen():
            await_held(writer)
            os.kill(other, signal.SIGKILL)
            time.sleep(END_S + 3)
            assert run.command.poll() is None, run.output
        await_again(run)
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.output
        assert kinds(run).count("restart") == 1
        assert kinds(run).count("rank") == 4
        assert not {"lost", "paused", "lost events"} & set(kinds(run))


def test_a_restart_waits_for_storage(tmp_path, disk):
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        _, other = run.await_ranks(range(2))
        (tmp_path / "hush").touch()
        time.sleep(0.2)  # longer than a look at the log
        with disk.frozen():
            os.kill(other, signal.SIGKILL)
            time.sleep(7)
            assert not (tmp_path / "again-0").exists()
        await_again(run)
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.output
        assert kinds(run).count("restart") == 1


@pytest.mark.full
def test_a_zygote_that_dies_while_storage_hangs_is_replaced(tmp_path, disk):
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        run.await_ranks(range(2))
        (tmp_path / "hush").touch()
        with disk.frozen():
            os.kill(run.find("zygote", 1), signal.SIGKILL)
            time.sleep(NEAR_SILENCE_S + 2)
            assert run.command.poll() is None, run.output
        await_again(run)
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.output
        assert kinds(run).count("restart") == 1
        assert not {"lost", "paused"} & set(kinds(run))


@pytest.mark.full
@pytest.mark.parametrize("held", ["the end of the first ranks", "the start of the second"])
def test_a_run_can_be_stopped_while_a_restart_waits_for_storage(tmp_path, disk, held):
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        first, other = run.await_ranks(range(2))
        (tmp_path / "hush").touch()
        if held == "the start of the second":
            time.sleep(0.2)  # longer than a look at the log: agents have nothing left to write
        with disk.frozen():
            os.kill(other, signal.SIGKILL)
            assert wait_until(lambda: first not in pids(run), timeout_s=10)
            await_held_thread(run.find("agent", 0))
            os.kill(run.command.pid, signal.SIGINT)
            assert wait_until(
                lambda: "zygote" not in {process.role for process in run.processes()},
                timeout_s=2 * END_S,
            )
        assert run.wait() == 130, run.output
        assert outcome(run)["state"] == "CANCELLED"
        assert kinds(run)[-1] == "ended"
        assert not (tmp_path / "again-0").exists()
        assert wait_until(lambda: not run.processes(), timeout_s=30)


@pytest.mark.parametrize("trouble", [pytest.param("frozen", marks=pytest.mark.full), "full"])
def test_an_end_waits_for_storage(tmp_path, disk, trouble):
    with live_run(tmp_path, SCRIPT, OPTIONS) as run:
        ranks = set(run.await_ranks(range(2)))
        (tmp_path / "hush").touch()
        time.sleep(0.2)
        with getattr(disk, trouble)():
            (tmp_path / "go").touch()
            assert wait_until(lambda: not ranks & pids(run), timeout_s=10)
            time.sleep(2)
            assert run.command.poll() is None, run.output
        assert run.wait() == 0, run.output
        assert outcome(run)["state"] == "COMPLETED"
        assert kinds(run)[-1] == "ended"
