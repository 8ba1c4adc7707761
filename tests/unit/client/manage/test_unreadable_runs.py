"""Runs with files that cannot be read: their state is unknown, and other runs are not affected."""

import json
import shutil

import pytest

from echelon.cli import main
from echelon.client.manage.clusters import Places
from echelon.core.jobs import Job
from echelon.core.records import SMALL_BYTES
from echelon.run.attempts import attempts, outcome, submit_attempt
from echelon.run.directory import RunDir
from echelon.run.listing import find_run
from echelon.run.request import render_spec
from echelon.run.sweep import sweep_of
from echelon.spec.job_spec import JobSpec

JOB = "local:elsewhere:1:0"


def make_run(runs, name):
    run = RunDir.create(runs, name)
    run.spec.write_text(render_spec(JobSpec(script="train.py")))
    submit_attempt(run, lambda _: JOB, lambda one: Job(id=one, state="RUNNING"))
    run.outcome(1).write_text('{"state": "COMPLETED", "exit_code": 0}')
    return run


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "runs", "whole-abcd")
    return tmp_path / "runs"


def spoil(path, how):
    content = path.read_text()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "large":
        record = {**json.loads(content), "more": "x" * SMALL_BYTES}
        path.write_text(json.dumps(record))
    else:
        path.write_text(content[:-5])


@pytest.mark.parametrize("how", ["folder", "large", "damaged"])
def test_a_run_with_an_unreadable_job_is_unknown_not_unsubmitted(runs, how, capsys):
    run = make_run(runs, "train-abcd")
    assert Places().job(run).state == "COMPLETED"
    spoil(run.attempt(1) / "job.json", how)
    job = Places().job(run)
    assert job.state == "UNKNOWN"
    assert job.reason.startswith(f"cannot read {run.attempt(1) / 'job.json'}: ")
    assert main.run(["ps", "--runs-dir", str(runs), "--json"]) == 0
    states = {row["run"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states == {"whole-abcd": "COMPLETED", "train-abcd": "UNKNOWN"}


def test_an_attempt_that_was_claimed_but_not_queued_is_not_unreadable(runs):
    run = RunDir.create(runs, "train-abcd")
    run.attempt(1).mkdir()
    assert Places().job(run).state == "UNSUBMITTED"


def test_an_unreadable_run_directory_does_not_affect_other_runs(runs, capsys):
    run = make_run(runs, "train-abcd")
    run.attempts.rename(run.path / "before")
    run.attempts.symlink_to(run.attempts)  # as an error of the storage would
    assert find_run(runs, "whole").run_id == "whole-abcd"
    assert main.run(["ps", "--runs-dir", str(runs)]) == 0
    assert f"the state is unknown: cannot read {run.attempts}" in capsys.readouterr().err


def test_listings_do_not_read_huge_records(runs):
    run = make_run(runs, "train-abcd")
    run.task.write_text('{"index": 0, "sweep": "lr-abcd"}')
    for path in (run.attempt(1) / "job.json", run.outcome(1), run.task):
        spoil(path, "large")
    assert (attempts(run), outcome(run, 1), sweep_of(run)) == ([], None, None)


@pytest.mark.parametrize("text", ["", '{"names": [], "tasks": {}, "max_running": 1e999}'])
def test_a_sweep_with_unreadable_parameters_does_not_affect_runs(runs, capsys, text):
    sweep = runs / "lr-abcd"
    shutil.copytree(runs / "whole-abcd", sweep)
    (sweep / "sweep.json").write_text(text)
    assert main.run(["ps", "--runs-dir", str(runs), "--json"]) == 0
    output = capsys.readouterr()
    states = {row["run"]: row["state"] for row in json.loads(output.out)}
    assert states == {"whole-abcd": "COMPLETED", "lr-abcd": "UNKNOWN"}
    assert "lr-abcd: the state is unknown: the parameters of the sweep" in output.err
