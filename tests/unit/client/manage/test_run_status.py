"""The cause of a failure, from the controller and from the cluster."""

import json
from dataclasses import asdict

import pytest

from echelon.client.manage.run_status import find_verdict
from echelon.core.jobs import Job
from echelon.run.directory import RunDir
from echelon.run.verdict import Failure, judge


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("FAILED", "cancelled"),
        ("RUNNING", "cancelled"),
        ("TIMEOUT", "time limit"),
        ("PREEMPTED", "preemption"),
        ("COMPLETED", ""),
        ("PENDING", ""),  # queued again: what ended it before did not end the run
    ],
)
def test_slurms_cause_replaces_a_guess_of_the_controller(tmp_path, state, cause):
    run = RunDir.create(tmp_path, "one")
    own = judge([Failure(cause="cancelled", message="the controller received SIGTERM")])
    run.verdict.write_text(json.dumps(asdict(own)))
    found = find_verdict(run, Job(id="7", state=state))
    assert (found.failure.cause if found else "") == cause


def test_the_controllers_verdict_is_kept_if_it_agrees_with_slurm(tmp_path):
    run = RunDir.create(tmp_path, "one")
    own = judge([Failure(cause="cancelled", message="all ranks saved and stopped after step 8")])
    run.verdict.write_text(json.dumps(asdict(own)))
    found = find_verdict(run, Job(id="7", state="CANCELLED"))
    assert found.failure.message == own.failure.message


def test_a_job_without_a_controller_reports_its_last_output(tmp_path):
    run = RunDir.create(tmp_path, "one")
    output = run.logs / "job-7.out"
    job = {"job_id": "7", "submitted": "", "output": str(output)}
    (run.attempts / "1").mkdir()
    (run.attempts / "1" / "job.json").write_text(json.dumps(job))
    ended = Job(id="7", state="FAILED", exit_code=1)
    assert find_verdict(run, ended).failure.message.endswith("its controller reported no outcome")
    output.write_text("x" * 9000 + "\nconda not found on node1: load its module\n\n")
    message = find_verdict(run, ended).failure.message
    assert message.endswith("the job's last output was: conda not found on node1: load its module")
