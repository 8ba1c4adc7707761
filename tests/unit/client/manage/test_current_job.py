"""The current job of a run, and its state."""

import json
import shutil

import pytest

from echelon.client.manage.run_status import current_job
from echelon.clusters.local import LocalCluster
from echelon.core.jobs import Job
from echelon.core.shell import FakeShell
from echelon.errors import NotFoundError
from echelon.spec.job_spec import JobSpec
from prepared import prepare_run


class Knows:
    """A cluster that knows a state for each job."""

    def __init__(self, **states):
        self.states = states

    def job(self, job_id, *, run_id):  # noqa: ARG002
        return Job(id=job_id, state=self.states[f"j{job_id}"])


def attempt(run, *, after="", owner="", outcome=None):
    """Make an attempt, whose job has the same number."""
    number = run.claim_attempt()
    record = {"job_id": str(number), "submitted": "", "output": "", "after": after}
    (run.attempt(number) / "job.json").write_text(json.dumps(record))
    if owner:
        (run.attempt(number) / "owner").write_text(owner)
    if outcome:
        run.outcome(number).write_text(json.dumps({"exit_code": 1, **outcome}))


@pytest.fixture
def run(tmp_path):
    return prepare_run(JobSpec(script="a.py"), tmp_path / "runs", tmp_path)


@pytest.mark.parametrize(
    ("first", "second", "current"),
    [
        ("RUNNING", "PENDING", "1"),
        ("PENDING", "PENDING", "1"),
        ("COMPLETED", "PENDING", "1"),  # Slurm will drop the standby in a moment
        ("COMPLETED", "CANCELLED", "1"),
        ("FAILED", "CANCELLED", "1"),  # it was withdrawn
        ("FAILED", "PENDING", "2"),
        ("NODE_FAIL", "PENDING", "2"),
        ("FAILED", "RUNNING", "2"),
        ("FAILED", "CONFIGURING", "2"),
    ],
)
def test_a_standby_is_current_when_the_job_before_it_has_ended(run, first, second, current):
    attempt(run, owner="1.0")
    attempt(run, after="1")
    assert current_job(run, Knows(j1=first, j2=second)).id == current


def test_a_standby_that_has_begun_stays_current(run):
    attempt(run, owner="1.0")
    attempt(run, after="1", owner="2.0")
    assert current_job(run, Knows(j1="FAILED", j2="FAILED")).id == "2"


def test_a_skipped_standby_is_never_current(run):
    attempt(run, owner="1.0", outcome={"state": "FAILED"})
    attempt(run, after="1", owner="2.0", outcome={"state": "SKIPPED"})
    assert current_job(run, Knows(j1="FAILED", j2="COMPLETED")).id == "1"


def test_the_new_job_of_a_resumed_run_is_current(run):
    attempt(run, owner="1.0")
    attempt(run, after="1")
    attempt(run)
    assert current_job(run, Knows(j1="FAILED", j2="CANCELLED", j3="PENDING")).id == "3"


@pytest.mark.parametrize(("ended", "state"), [("CANCELLED", "CANCELLED"), ("TIMEOUT", "FAILED")])
def test_a_stopped_run_is_cancelled_not_failed(run, ended, state):
    attempt(run, owner="1.0", outcome={"state": ended, "exit_code": 143})
    assert current_job(run, Knows(j1="FAILED")).state == state


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT"])
def test_a_job_that_slurm_has_forgotten_has_the_controllers_outcome(run, state):
    attempt(run, owner="1.0", outcome={"state": state, "exit_code": 9})
    attempt(run, after="1")
    found = current_job(run, Knows(j1="UNKNOWN", j2="UNKNOWN"))
    assert (found.id, found.state, found.exit_code) == ("1", state, 9)
    assert current_job(run, Knows(j1="FAILED", j2="UNKNOWN")).state == "FAILED"


def test_the_current_job_of_a_deleted_directory_is_an_error(run):
    shutil.rmtree(run.path)
    with pytest.raises(NotFoundError, match="directory was deleted"):
        current_job(run, LocalCluster(FakeShell(), {}, run.path.parent))
