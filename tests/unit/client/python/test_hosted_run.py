"""What a host answers about a run there, and what happens if the answer is malformed."""

import json

import pytest

from echelon.client.python.hosted_run import HostedRun, HostedTask, HostedTasks
from echelon.client.remote import remote_calls as hosts
from echelon.clusters.ssh.site import Site
from echelon.errors import UnavailableError

SITE = Site(host="me@login", workdir="~/x")
STATUS = {"directory": "/runs/train-abcd", "job": "7", "state": "COMPLETED", "exit_code": 0}


@pytest.fixture
def answer(monkeypatch):
    """Sets what the host answers to the next question."""
    answers = []
    monkeypatch.setattr(hosts, "run_there", lambda _site, _argv: answers.pop(0))
    return lambda value: answers.append(value if isinstance(value, str) else json.dumps(value))


def test_a_job(answer):
    answer(STATUS)
    job = HostedRun(SITE, "train-abcd").job()
    assert (job.id, job.state, job.exit_code) == ("7", "COMPLETED", 0)


@pytest.mark.parametrize(
    "said", ["", "null", "[]", '"7"', '{"state": "COMPLETED"}', "{", "[" * 5000]
)
def test_a_status_of_another_form(answer, said):
    answer(said)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to status"):
        HostedRun(SITE, "train-abcd").job()


@pytest.mark.parametrize(
    "said", [{}, {"runs": []}, {"runs": {}}, {"runs": {"lr-abcd-1": "x"}}, "null"]
)
def test_a_sweep_of_another_form(answer, tmp_path, said):
    answer(said)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to sweep"):
        HostedTask(HostedTasks(SITE, "lr-abcd", tmp_path), 1).job()


def test_a_verdict_that_is_not_there(answer):
    answer("null")
    assert HostedRun(SITE, "train-abcd").verdict(None) is None


@pytest.mark.parametrize("said", ["[]", '{"failure": 7}', '{"no": "verdict"}'])
def test_a_verdict_of_another_form(answer, said):
    answer(said)
    with pytest.raises(UnavailableError, match="unexpected answer from me@login to why"):
        HostedRun(SITE, "train-abcd").verdict(None)
