"""Queries about the jobs of runs: one for all tasks of a sweep, also during outages."""

import json

import pytest

from echelon.client.manage.run_jobs import host_jobs, host_sweep_jobs, sweep_jobs
from echelon.client.manage.sweep_runner import record_runner
from echelon.client.remote import remote_calls
from echelon.client.submit.parameters import make_table
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.clusters.ssh.host import LostConnectionError
from echelon.clusters.ssh.site import Site
from echelon.core.shell import FakeShell, Result
from echelon.core.slurm import forgotten
from echelon.errors import UnavailableError
from echelon.run.sweep import Array
from echelon.spec.merging import Layer, merge
from fake_clock import FakeClock
from prepared import prepare_sweep

SITE = Site(host="me@login", workdir="~/x")


@pytest.fixture
def host(monkeypatch):
    """Sets what a host answers to the next question."""
    answers = []

    def run_there(_site, _argv):
        one = answers.pop(0)
        if isinstance(one, Exception):
            raise one
        return json.dumps(one)

    monkeypatch.setattr(remote_calls, "run_there", run_there)
    return answers.append


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    values = {"script": "train.py", "snapshot": False, "args": ["{i}"]}
    spec = merge([Layer(source="test", values=values)]).spec
    rows = [{"i": str(number)} for number in range(3)]
    return prepare_sweep(spec, make_table(rows), tmp_path / "runs")


def test_all_tasks_of_a_sweep_are_one_query_whose_answer_is_reused(sweep):
    sweep.record_array(1, Array("7", 0, (0, 1, 2)))
    mark = f"echelon:{sweep.sweep_id}-*/1"
    lines = [f"7|7_{n}|{state}|None||{mark}" for n, state in enumerate(["RUNNING"] * 2)]
    shell = FakeShell(answers={"squeue": "\n".join(lines) + "\n", "sacct": ""})
    clock = FakeClock()
    jobs = sweep_jobs(sweep, SlurmCluster(shell, {}), clock)
    ids = [sweep.run_id(index) for index in range(3)]
    assert [jobs.job(one).state for one in ids] == ["RUNNING", "RUNNING", "UNKNOWN"]
    asked = len(shell.calls)
    assert [jobs.job(one).state for one in ids] == ["RUNNING", "RUNNING", "UNKNOWN"]
    assert len(shell.calls) == asked
    ended = jobs.ended()
    assert [ended[one] for one in ids] == [None, None, forgotten("7_2")]
    jobs.forget()
    jobs.job(ids[0])
    assert len(shell.calls) == 3 * asked


def test_waiting_for_a_sweep_continues_while_slurm_does_not_respond(sweep, capsys):
    sweep.record_array(1, Array("7", 0, (0, 1, 2)))
    away = Result(argv=("squeue",), code=1, stderr="Unable to contact slurm controller")
    clock = FakeClock()
    slurm = SlurmCluster(
        FakeShell(answers={"squeue": away}), {}, sleep=clock.sleep, clock=clock.now_s
    )
    jobs = sweep_jobs(sweep, slurm, clock)
    assert jobs.ended() == {}
    clock.sleep(2)
    assert jobs.ended() == {}
    assert jobs.job(sweep.run_id(0)).state == "UNKNOWN"
    assert capsys.readouterr().err.count("waiting for the run's storage or cluster") == 1


def test_tasks_without_a_run_wait_as_long_as_a_process_starts_tasks(sweep):
    jobs = sweep_jobs(sweep, SlurmCluster(FakeShell(), {}), FakeClock())
    first = sweep.run_id(0)
    assert jobs.job(first).state == "UNSUBMITTED"
    record_runner(sweep, 1, "local")
    jobs.forget()
    assert jobs.job(first).state == "PENDING"
    assert jobs.ended()[first] is None
    sweep.stopped.touch()
    jobs.forget()
    assert jobs.ended()[first].state == "UNSUBMITTED"


@pytest.mark.parametrize(
    ("job", "has_ended"),
    [
        ({"state": "COMPLETED"}, True),
        ({"state": "RUNNING"}, False),
        ({"state": "UNKNOWN", "reason": "squeue did not respond"}, False),
        ({"state": "UNKNOWN", "reason": forgotten("").reason}, True),
    ],
)
def test_a_job_on_a_host_whose_state_is_unknown_there_has_not_ended(host, job, has_ended):
    host({"runs": {"lr-abcd-1": {"job": "7", **job}}})
    assert (host_sweep_jobs(SITE, "lr-abcd").ended()["lr-abcd-1"] is not None) is has_ended


def test_a_connection_lost_while_waiting_is_made_again(host):
    clock = FakeClock()
    jobs = host_jobs(SITE, "train-abcd", clock)
    host({"job": "7", "state": "RUNNING", "exit_code": None})
    assert jobs.ended() == {"train-abcd": None}
    host(LostConnectionError("cut"))
    assert jobs.ended() == {}
    assert jobs.ended() == {}
    clock.sleep(1)
    host({"job": "7", "state": "FAILED", "exit_code": 3})
    assert jobs.ended()["train-abcd"].exit_code == 3


def test_a_host_that_cannot_be_reached_at_first_is_an_error(host):
    host(UnavailableError("no network"))
    with pytest.raises(UnavailableError, match="no network"):
        host_jobs(SITE, "train-abcd").ended()


def test_a_task_that_a_host_does_not_list_is_an_error(host):
    host({"runs": {}})
    with pytest.raises(UnavailableError, match="did not list the run 'lr-abcd-1'"):
        host_sweep_jobs(SITE, "lr-abcd").job("lr-abcd-1")
