"""Answers of a host about a run, also malformed ones."""

import json
import pickle

import pytest

from echelon.client.manage.run_jobs import host_jobs, host_sweep_jobs
from echelon.client.manage.sweeps import NEVER_STARTED
from echelon.client.python.hosted_run import HostedRun
from echelon.client.python.run_view import Run
from echelon.client.remote import remote_calls as hosts
from echelon.clusters.ssh.site import Site
from echelon.core.jobs import Job
from echelon.errors import UnavailableError

SITE = Site(host="me@login", workdir="~/x")
STATUS = {"directory": "/runs/train-abcd", "job": "7", "state": "COMPLETED", "exit_code": 0}

FAILED = Job(id="7", state="FAILED")


@pytest.fixture
def answer(monkeypatch):
    """Sets what the host answers to the next question."""
    answers = []
    monkeypatch.setattr(hosts, "run_there", lambda _site, _argv: answers.pop(0))
    return lambda value: answers.append(value if isinstance(value, str) else json.dumps(value))


def test_the_job_of_a_hosted_run_is_read_from_its_status(answer):
    answer(STATUS)
    job = host_jobs(SITE, "train-abcd").job("train-abcd")
    assert (job.id, job.state, job.exit_code) == ("7", "COMPLETED", 0)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", '"7"', '{"state": "COMPLETED"}', "{", "[" * 5000]
)
def test_a_malformed_status_is_an_error(answer, text):
    answer(text)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to status"):
        host_jobs(SITE, "train-abcd").job("train-abcd")


@pytest.mark.parametrize(
    "text",
    [{}, *({"runs": runs} for runs in ([], {"lr-abcd-1": "x"})), "null"],
)
def test_a_malformed_sweep_status_is_an_error(answer, text):
    answer(text)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to sweep"):
        host_sweep_jobs(SITE, "lr-abcd").job("lr-abcd-1")


def test_a_hosted_run_without_a_failure_has_no_verdict(answer):
    answer("null")
    assert HostedRun(SITE, "train-abcd").verdict(FAILED) is None


@pytest.mark.parametrize("text", ["[]", '{"failure": 7}', '{"no": "verdict"}'])
def test_a_malformed_verdict_is_an_error(answer, text):
    answer(text)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to why"):
        HostedRun(SITE, "train-abcd").verdict(FAILED)


def test_the_verdict_of_a_task_that_was_never_started_needs_no_query():
    never = Job(id="", state="CANCELLED", reason=NEVER_STARTED)
    verdict = HostedRun(SITE, "lr-abcd-1").verdict(never)
    assert (verdict.failure.cause, verdict.failure.message) == ("cancelled", NEVER_STARTED)


def test_a_hosted_run_can_be_pickled(answer):
    run = Run.of(HostedRun(SITE, "train-abcd"))
    answer(STATUS)
    assert run.state == "COMPLETED"
    again = pickle.loads(pickle.dumps(run))
    answer(STATUS)
    assert (again, again.wait(0)) == (run, "COMPLETED")
