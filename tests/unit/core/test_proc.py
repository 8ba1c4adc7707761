"""What /proc shows of a process."""

import os
import signal
import subprocess
import time

import pytest

from echelon.core.proc import OomWatch, describe_process, oom_counters, sample_process, tail
from echelon.core.waiting import wait_until


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_a_process_that_computes_uses_time():
    _, before_s = sample_process(os.getpid())
    until_s = time.process_time() + 0.05
    while time.process_time() < until_s:
        pass
    state, after_s = sample_process(os.getpid())
    assert state == "R"
    assert 0.04 < after_s - before_s < 5


def test_a_process_that_sleeps_uses_none(sleeper):
    assert wait_until(lambda: sample_process(sleeper)[0] == "S", timeout_s=10)
    _, before_s = sample_process(sleeper)
    time.sleep(0.05)
    assert sample_process(sleeper) == ("S", before_s)


def test_a_process_that_is_stopped(sleeper):
    os.kill(sleeper, signal.SIGSTOP)
    assert wait_until(lambda: sample_process(sleeper)[0] == "T", timeout_s=10)
    assert describe_process(sleeper).startswith(f"process {sleeper} is stopped by a signal, CPU")


def test_a_process_that_is_gone():
    with subprocess.Popen(["true"]) as process:
        pass
    assert sample_process(process.pid) == ("X", 0.0)


def test_a_kernel_that_counts_ticks_alone(tmp_path):
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) S {' '.join(['0'] * 10)} {2 * ticks} {ticks} 0")
    assert sample_process(7, tmp_path) == ("S", 3.0)
    assert sample_process(8, tmp_path) == ("X", 0.0)


def test_the_end_of_a_file(tmp_path):
    path = tmp_path / "log"
    assert tail(path) == ""
    path.write_bytes(b"x" * 100_000 + "end \xe9".encode("latin-1"))
    assert tail(path, size=5) == "end �"
    assert tail(path, start=100_000) == "end �"
    # NCCL's last words are followed by two stacks of every thread.
    assert len(tail(path)) == 1 << 16


@pytest.fixture
def counter(tmp_path):
    path = tmp_path / "memory.events"
    path.write_text("low 0\noom 1\noom_kill 3\n")
    return path


def watching(counter):
    """A watch whose most specific counter cannot be read."""
    return OomWatch([counter.with_name("missing"), counter])


def test_a_kill_for_memory_explains_deaths_of_the_moment(counter):
    watch = watching(counter)
    assert not watch.happened(0)
    counter.write_text("low 0\noom 2\noom_kill 4\n")
    assert watch.happened(1)
    assert watch.happened(12)  # another rank of the node may be slower to notice its dead worker
    assert not watch.happened(40)


def test_one_that_was_survived_long_ago_does_not(counter):
    watch = watching(counter)
    counter.write_text("oom_kill 4\n")
    watch.look(1)
    assert not watch.happened(3600)


def test_without_a_counter_nothing_is_claimed(tmp_path):
    assert not OomWatch([tmp_path / "missing"]).happened(0)


def test_a_counter_that_goes_away_is_no_kill(counter):
    watch = watching(counter)
    counter.unlink()
    assert not watch.happened(0)
    counter.write_text("oom_kill 3\n")
    assert not watch.happened(1)


def test_the_kernels_counters_are_found_here():
    """If nothing else can be read, there is the whole machine's."""
    found = oom_counters()
    assert str(found[-1]) == "/proc/vmstat"
    assert any("oom_kill " in path.read_text() for path in found if os.access(path, os.R_OK))
