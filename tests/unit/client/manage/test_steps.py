"""The state of a step: its own outcome, or that of the job that holds its allocation."""

import json

import pytest

from echelon.client.manage.run_status import current_job, step_job
from echelon.client.manage.waiting import cancel_all, stop_all
from echelon.core.jobs import Job
from echelon.run.attempts import attempts, claim_step
from echelon.run.directory import RunDir

RUNNING = Job(id="7", state="RUNNING", nodes="n1")


class Cluster:
    """Knows one job, and must not be asked to end it."""

    def __init__(self, job=RUNNING):
        self.held = job

    def job(self, job_id, *, run_id):
        assert (job_id, run_id) == ("7", "sweep-ab12")
        return self.held


@pytest.fixture
def run(tmp_path):
    holder = RunDir.create(tmp_path, "sweep-ab12")
    holder.claim_attempt()
    (holder.attempt(1) / "job.json").write_text(json.dumps({"job_id": "7"}))
    run = RunDir.create(tmp_path, "sweep-ab12-3")
    claim_step(run, job_id="7", within="sweep-ab12")
    return run


def state(run, job):
    return step_job(run, attempts(run)[-1], job).state


def begin(run):
    (run.attempt(1) / "owner").write_text("7 n1 1")


def end(run, **outcome):
    run.outcome(1).write_text(json.dumps({"exit_code": 0, **outcome}))


def test_its_own_outcome_counts_though_the_job_goes_on(run):
    assert state(run, RUNNING) == "PENDING"  # its controller has not begun
    begin(run)
    assert state(run, RUNNING) == "RUNNING"
    end(run, state="FAILED")
    assert state(run, RUNNING) == "FAILED"


def test_what_is_to_be_started_again_waits_for_a_slot(run):
    end(run, state="TIMEOUT", next="allocation")
    found = step_job(run, attempts(run)[-1], RUNNING)
    assert (found.state, found.reason) == ("PENDING", "it waits for a slot")
    assert state(run, Job(id="7", state="FAILED")) == "TIMEOUT"


def test_without_an_outcome_the_job_tells(run):
    begin(run)
    assert state(run, Job(id="7", state="CANCELLED")) == "CANCELLED"
    # It was not completed by an allocation that ended without it.
    assert state(run, Job(id="7", state="COMPLETED")) == "FAILED"
    # Another job holds the allocation now, and has not started it yet.
    assert state(run, Job(id="8", state="RUNNING")) == "PENDING"


def test_one_that_was_never_started_waits_while_the_job_goes_on(run):
    assert step_job(run, None, RUNNING).state == "PENDING"
    assert step_job(run, None, Job(id="7", state="COMPLETED")).state == "UNSUBMITTED"


def test_the_cluster_is_asked_for_the_job_of_the_sweep(run):
    begin(run)
    assert current_job(run, Cluster()).state == "RUNNING"


@pytest.mark.parametrize(("within", "reason"), [("..", "no '..'"), ("gone", "no 'gone'")])
def test_a_record_leads_nowhere_else(run, within, reason):
    record = {"job_id": "7", "within": within}
    (run.attempt(1) / "job.json").write_text(json.dumps(record))
    found = current_job(run, Cluster())
    assert found.state == "UNKNOWN"
    assert reason in found.reason


@pytest.mark.parametrize(("end_run", "said"), [(stop_all, "stop\n"), (cancel_all, "cancel\n")])
def test_to_end_a_step_does_not_end_its_job(run, end_run, said):
    end_run(run, Cluster())
    assert (run.attempt(1) / "stopping").read_text() == said
