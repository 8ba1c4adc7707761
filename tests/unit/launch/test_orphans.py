"""A job whose controller's host has died is ended by its agents; others are left alone."""

import time

import pytest

from echelon.core.events import EventWriter
from echelon.core.rundir import RunDir
from echelon.core.shell import FakeShell, Result
from echelon.launch.attempts import is_orphaned
from echelon.launch.contract import HERE
from echelon.launch.orphans import end_orphaned_job

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node2"}
PID = 41


def end(tmp_path, *states, environ=JOB, mode="auto", lost=(), nodes="node[1-3]"):
    """Return what was done to the job, and whether the attempt is marked."""
    run = RunDir.create(tmp_path, "r-1")
    run.claim_attempt()
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        for facts in lost:
            events.write("lost", **facts)
    left = list(states)
    ended = []

    def answer(argv):
        if "show" not in argv:
            ended.append(tuple(argv))
            return Result(argv=argv)
        state = left.pop(0) if len(left) > 1 else left[0]
        where = f"NodeList={nodes} BatchHost=node1"
        return Result(argv=argv, stdout=f"JobId=7 JobState={state} Reason=None {where}")

    shell = FakeShell(answers={"scontrol": answer, "scancel": answer})
    end_orphaned_job(run, 1, environ, shell, mode=mode, pid=PID, sleep=lambda _: None)
    return ended, is_orphaned(run, 1)


def test_a_job_that_stays_is_ended_and_marked(tmp_path):
    assert end(tmp_path, "RUNNING") == ([("scancel", "7")], True)


def test_or_queued_again(tmp_path):
    assert end(tmp_path, "RUNNING", mode="requeue") == ([("scontrol", "requeue", "7")], True)


@pytest.mark.parametrize("state", ["COMPLETING", "FAILED", "CANCELLED"])
def test_one_that_slurm_ends_is_left_to_it(tmp_path, state):
    assert end(tmp_path, "RUNNING", state) == ([], False)


@pytest.mark.parametrize("environ", [{}, {**JOB, HERE: "1"}])
def test_nobody_elses_job_is_touched(tmp_path, environ):
    assert end(tmp_path, "RUNNING", environ=environ) == ([], False)


def test_a_controller_that_has_seen_us_go_has_its_job_in_hand(tmp_path):
    gone = {"node": 1, "name": "node2", "pid": PID}
    assert end(tmp_path, "RUNNING", lost=[gone]) == ([], False)


def test_but_not_if_slurm_has_taken_its_host_out_of_the_job(tmp_path):
    """Nobody else would ever end it: the batch script is forgotten."""
    gone = {"node": 1, "name": "node2", "pid": PID}
    ended = end(tmp_path, "RUNNING", lost=[gone], nodes="node[2-3]")
    assert ended == ([("scancel", "7")], True)


def test_the_loss_of_another_says_nothing(tmp_path):
    others = [{"node": 1, "name": "node2", "pid": 40}, {"node": 2, "name": "node3", "pid": PID}]
    assert end(tmp_path, "RUNNING", lost=others) == ([("scancel", "7")], True)
