"""A job whose controller's host has died is ended by its agents; others are left alone."""

import socket
import time

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.launch.agent.orphans import answers_at, end_orphaned_job
from echelon.launch.protocol.rank_environment import HERE
from echelon.run.attempts import is_orphaned
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from eventlines import raw

JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node2"}
PID = 41
waited = []
"""How long each pause of the last call was."""


def end_after_states(
    tmp_path, *states, environ=JOB, requeue=False, lost=(), nodes="node[1-3]", answers=True
):
    """Return what was done to the job, and whether the attempt is marked."""
    run = RunDir.create(tmp_path, "r-1")
    run.claim_attempt()
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        for facts in lost:
            events.write(raw("lost", **facts))
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
    waited.clear()
    end_orphaned_job(
        run,
        1,
        environ,
        shell,
        requeue=requeue,
        pid=PID,
        answers=lambda: answers,
        sleep=waited.append,
    )
    return ended, is_orphaned(run, 1)


def test_a_job_that_stays_is_ended_and_marked(tmp_path):
    assert end_after_states(tmp_path, "RUNNING") == ([("scancel", "7")], True)


def test_one_whose_host_does_not_answer_is_ended_at_once(tmp_path):
    assert end_after_states(tmp_path, "RUNNING", answers=False) == ([("scancel", "7")], True)
    assert waited == []


def test_one_whose_host_answers_has_time_to_end_by_itself(tmp_path):
    assert end_after_states(tmp_path, "RUNNING", answers=True) == ([("scancel", "7")], True)
    assert sum(waited) == 8


def test_where_slurm_does_not_answer_either_it_may_be_we_who_are_cut_off(tmp_path):
    assert end_after_states(tmp_path, "", answers=False) == ([("scancel", "7")], True)
    assert sum(waited) == 8


def test_where_the_host_does_not_answer_us_its_controller_may_still_have_seen_us_go(tmp_path):
    gone = {"node": 1, "name": "node2", "pid": PID}
    assert end_after_states(tmp_path, "RUNNING", lost=[gone], answers=False) == ([], False)


@pytest.mark.parametrize("listens", [True, False])
def test_a_host_answers_whether_or_not_the_controller_listens(listens):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        assert answers_at(*listener.getsockname())


def test_a_host_without_a_way_to_it_does_not_answer(monkeypatch):
    monkeypatch.setattr("echelon.launch.agent.orphans._PROBE_S", 0.01)
    assert not answers_at("255.255.255.255", 9)


def test_or_queued_again(tmp_path):
    assert end_after_states(tmp_path, "RUNNING", requeue=True) == (
        [("scontrol", "requeue", "7")],
        True,
    )


@pytest.mark.parametrize("state", ["COMPLETING", "FAILED", "CANCELLED"])
def test_one_that_slurm_ends_is_left_to_it(tmp_path, state):
    assert end_after_states(tmp_path, "RUNNING", state) == ([], False)


@pytest.mark.parametrize("environ", [{}, {**JOB, HERE: "1"}])
def test_nobody_elses_job_is_touched(tmp_path, environ):
    assert end_after_states(tmp_path, "RUNNING", environ=environ) == ([], False)


def test_a_controller_that_has_seen_us_go_has_its_job_in_hand(tmp_path):
    gone = {"node": 1, "name": "node2", "pid": PID}
    assert end_after_states(tmp_path, "RUNNING", lost=[gone]) == ([], False)


def test_but_not_if_slurm_has_taken_its_host_out_of_the_job(tmp_path):
    """Nobody else would ever end it: the batch script is forgotten."""
    gone = {"node": 1, "name": "node2", "pid": PID}
    ended = end_after_states(tmp_path, "RUNNING", lost=[gone], nodes="node[2-3]")
    assert ended == ([("scancel", "7")], True)


def test_the_loss_of_another_says_nothing(tmp_path):
    others = [{"node": 1, "name": "node2", "pid": 40}, {"node": 2, "name": "node3", "pid": PID}]
    assert end_after_states(tmp_path, "RUNNING", lost=others) == ([("scancel", "7")], True)
