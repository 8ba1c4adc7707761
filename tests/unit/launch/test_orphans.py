"""A job whose controller's host has died is ended by its agents; others are left alone."""

import pytest

from echelon.core.rundir import RunDir
from echelon.core.shell import FakeShell, Result
from echelon.launch.attempts import is_orphaned
from echelon.launch.contract import HERE
from echelon.launch.orphans import end_orphaned_job

JOB = {"SLURM_JOB_ID": "7"}


def end(tmp_path, *states, environ=JOB, mode="auto"):
    """Return what was done to the job, and whether the attempt is marked."""
    run = RunDir.create(tmp_path, "r-1")
    run.claim_attempt()
    left = list(states)
    ended = []

    def answer(argv):
        if "show" not in argv:
            ended.append(tuple(argv))
            return Result(argv=argv)
        state = left.pop(0) if len(left) > 1 else left[0]
        return Result(argv=argv, stdout=f"JobId=7 JobState={state} Reason=None")

    shell = FakeShell(answers={"scontrol": answer, "scancel": answer})
    end_orphaned_job(run, 1, environ, shell, mode=mode, sleep=lambda _: None)
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
