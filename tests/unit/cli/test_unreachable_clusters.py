"""Commands about runs whose Ray cluster or Slurm does not respond."""

import json
import os

import pytest

from echelon.cli import main
from echelon.clusters.ray.address import remember_address
from echelon.clusters.ray.cluster import RayCluster
from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import Job
from echelon.run.attempts import attempts
from echelon.spec.job_spec import JobSpec
from prepared import prepare_run

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two runs whose cluster does not respond, and one with a recorded outcome."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    remember_address(NOBODY, os.environ)
    found = {}
    for name in ("one", "two", "ended"):
        run = prepare_run(JobSpec(script="x.py", name=name), tmp_path / "runs", tmp_path)
        number = run.claim_attempt()
        job = {"job_id": f"ray:{run.run_id}-1@{NOBODY}", "submitted": "2026", "after": ""}
        write_atomic(run.attempt(number) / "job.json", json.dumps(job))
        found[name] = run
    write_atomic(found["ended"].outcome(1), '{"state": "FAILED", "exit_code": 3}')
    return found


def echelon(capsys, runs, *words):
    folder = next(iter(runs.values())).path.parent
    code = main.run([*words, f"--runs-dir={folder}"])
    return code, *capsys.readouterr()


def test_ps_lists_runs_of_an_unreachable_ray_cluster(capsys, runs):
    code, out, _ = echelon(capsys, runs, "ps", "--json")
    assert code == 0
    states = {row["run"].rpartition("-")[0]: row["state"] for row in json.loads(out)}
    assert states == {"one": "UNKNOWN", "two": "UNKNOWN", "ended": "FAILED"}


@pytest.fixture
def queued(runs, tmp_path, monkeypatch):
    """A fourth run, on a Slurm whose commands are not installed here."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run = prepare_run(JobSpec(script="x.py", name="queued"), tmp_path / "runs", tmp_path)
    job = {"job_id": "17", "submitted": "2026", "after": ""}
    write_atomic(run.attempt(run.claim_attempt()) / "job.json", json.dumps(job))
    return run


@pytest.mark.usefixtures("queued")
def test_ps_lists_all_runs_without_slurm(capsys, runs):
    code, out, err = echelon(capsys, runs, "ps", "--json")
    assert code == 0
    states = {row["run"].rpartition("-")[0]: row["state"] for row in json.loads(out)}
    assert states == {"one": "UNKNOWN", "two": "UNKNOWN", "ended": "FAILED", "queued": "UNKNOWN"}
    assert "the state is unknown: the program 'scontrol' is not installed" in err
    assert err.count("the state is unknown: no Ray cluster responds") == 1


def test_status_without_slurm_reads_the_recorded_outcome(capsys, runs, queued):
    write_atomic(queued.outcome(1), '{"state": "FAILED", "exit_code": 3}')
    code, out, _ = echelon(capsys, runs, "status", "queued", "--json")
    status = json.loads(out)
    assert (code, status["state"], status["exit_code"]) == (0, "FAILED", 3)


def test_status_and_why_report_an_unreachable_ray_cluster(capsys, runs):
    code, out, _ = echelon(capsys, runs, "status", "one", "--json")
    assert code == 0
    status = json.loads(out)
    assert status["state"] == "UNKNOWN"
    assert status["reason"].startswith(f"no Ray cluster responds at {NOBODY}")
    code, out, _ = echelon(capsys, runs, "why", "one")
    assert code == 0
    assert f"no Ray cluster responds at {NOBODY}" in out


@pytest.mark.parametrize("command", ["resume", "stop", "cancel"])
def test_stop_and_resume_without_the_ray_cluster_hint_at_address(capsys, runs, command):
    code, _, err = echelon(capsys, runs, command, "one")
    assert code == 69
    assert "--address http://HEAD:8265" in err
    code, _, err = echelon(capsys, runs, command, "one", "--address=http://[::1")
    assert (code, "not a valid address of Ray's Jobs API" in err) == (2, True)


def test_resume_submits_to_a_new_ray_address(capsys, runs, monkeypatch):
    asked = []

    def submit(cluster, *_, run_id, attempt, **__):
        asked.append(cluster.address)
        return f"ray:{run_id}-{attempt}@{cluster.address}"

    monkeypatch.setattr(RayCluster, "submit", submit)
    code, _, err = echelon(capsys, runs, "resume", "one", "--address=new:1", "--trust")
    assert code == 0, err
    assert asked == ["http://new:1"]
    assert [one.number for one in attempts(runs["one"])] == [1, 2]


def test_resume_at_a_new_address_refuses_an_active_run(capsys, runs, monkeypatch):
    living = lambda cluster, job_id, **_: Job(  # noqa: E731
        id=job_id, state="RUNNING" if cluster.address == NOBODY else "UNKNOWN"
    )
    monkeypatch.setattr(RayCluster, "job", living)
    code, _, err = echelon(capsys, runs, "resume", "one", "--address=new:1")
    assert code == 73
    assert "has not ended" in err


def test_submit_notes_that_it_waits_for_slurm(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("echelon.core.slurm.QUIET_S", 0.01)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nsleep 0.5\necho Invalid job id >&2\nexit 1\n")
    scontrol.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "train.py").touch()
    request = ["--chdir", str(tmp_path), "--python", "/bin/sh", "train.py"]
    main.run(["submit", f"--runs-dir={tmp_path}/runs", *request])
    assert capsys.readouterr().err.startswith("waiting for Slurm to respond\n")
