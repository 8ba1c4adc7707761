"""Packed sweeps: tasks side by side in one allocation, which harm no other, whatever is killed."""

import os
import signal

import pytest

from echelon.core.waiting import wait_until
from local.packed import WAIT_S, PackedSweep
from requirements import do_without


@pytest.fixture
def start(tmp_path):
    started = []

    def start(*tasks, options=()):
        started.append(PackedSweep(tmp_path, *tasks, options=options))
        return started[-1]

    yield start
    for one in started:
        one.close()


def assert_gone(packed):
    assert wait_until(lambda: not packed.left(), timeout_s=WAIT_S), packed.left()


@pytest.mark.quick
def test_a_task_that_fails_harms_no_other(start):
    packed = start("fine", "crash", "fine", "fine")
    assert packed.wait() == 1
    assert packed.states() == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    assert "1 of 4 tasks did not complete" in packed.output()
    assert "as it was told to" in packed.command("why", f"{packed.sweep}-1")
    assert_gone(packed)


def test_slots_divide_the_cpus_of_a_node(start):
    if len(os.sched_getaffinity(0)) < 2:
        do_without("needs two CPUs")
    packed = start(*["wait"] * 2, options=["--per-slot=1"])
    packed.await_begun(0, 1)
    packed.go()
    assert packed.wait() == 0
    (first,), (second,) = packed.begun(0), packed.begun(1)
    assert len(first[2:]) == len(second[2:]) == 1
    assert first[2:] != second[2:]


def test_what_is_killed_in_one_task_leaves_the_others_alone(start):
    packed = start("wait", "wait", "wait")
    packed.await_begun(0, 1, 2)
    others = packed.begun(2)
    os.kill(int(packed.begun(0)[0][0]), signal.SIGKILL)
    packed.await_begun(0, times=2)  # its controller restarts the rank
    os.kill(packed.agent(1), signal.SIGKILL)
    packed.await_begun(1, times=2)
    os.kill(packed.controller(1), signal.SIGKILL)
    packed.await_begun(1, times=3)  # in another attempt, which the broker has started
    assert packed.states() == ["RUNNING"] * 3
    packed.go()
    assert packed.wait() == 0, packed.output()
    assert packed.states() == ["COMPLETED"] * 3
    assert packed.begun(2) == others
    assert_gone(packed)


def test_a_lost_keeper_is_replaced_and_its_tasks_go_on(start):
    packed = start("wait", "wait")
    packed.await_begun(0, 1)
    os.kill(packed.keeper(), signal.SIGKILL)
    packed.await_begun(0, 1, times=2)
    packed.go()
    assert packed.wait() == 0, packed.output()
    assert packed.states() == ["COMPLETED"] * 2
    assert_gone(packed)


def test_without_its_broker_nothing_is_left_and_the_sweep_can_be_resumed(start):
    packed = start("fine", "wait", "wait")
    packed.await_begun(0, 1, 2)
    assert wait_until(lambda: packed.states()[0] == "COMPLETED", timeout_s=WAIT_S)
    os.kill(packed.broker(), signal.SIGKILL)
    assert packed.wait() != 0
    assert_gone(packed)
    assert packed.states() == ["COMPLETED", "FAILED", "FAILED"]
    packed.go()
    packed.command("sweep", "resume", packed.sweep)
    assert packed.states() == ["COMPLETED"] * 3
    assert len(packed.begun(0)) == 1
    assert_gone(packed)


def test_one_task_can_be_stopped_and_the_sweep_can_be_stopped_and_resumed(start):
    packed = start("wait", "wait", "wait")
    packed.await_begun(0, 1, 2)
    packed.command("stop", f"{packed.sweep}-1")
    assert wait_until(lambda: packed.states()[1] == "CANCELLED", timeout_s=WAIT_S)
    assert packed.states() == ["RUNNING", "CANCELLED", "RUNNING"]
    packed.command("sweep", "stop", packed.sweep)
    packed.wait()
    assert packed.states() == ["CANCELLED"] * 3
    assert_gone(packed)
    packed.go()
    packed.command("sweep", "resume", packed.sweep)
    assert packed.states() == ["COMPLETED"] * 3
    assert_gone(packed)
