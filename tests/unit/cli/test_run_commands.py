"""The output of `ps` and `status`."""

import json
import os
import time

import pytest

from echelon.cli import main
from echelon.core.atomic_file import write_atomic
from echelon.run import events
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.request import render_spec
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount
from recorded_run import record_run

ASKED = {"nodes": "2", "procs": "4", "gpus": "", "gpu_type": "", "partition": "low"}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with two runs that failed and one that was never submitted, in this order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "runs"
    nodes = NodeCount(low=2, high=2)
    spec = JobSpec(
        script="train.py", args=("--lr", "0.1", "a b"), nodes=nodes, procs=4, partition="low"
    )
    for number, name in enumerate(("first-a", "second-b")):
        run = record_run(folder, name)
        write_atomic(run.spec, render_spec(spec))
        os.utime(run.spec, (number, number))
    RunDir.create(folder, "third-c").spec.write_text('script = "eval.py"\nmodule = "true"\n')
    return folder


def test_logs_can_print_the_debug_logs_of_controller_and_agents(runs, capsys):
    folder = RunDir.open(runs / "first-a").debug_logs(1)
    folder.mkdir()
    for writer, second in (("controller", 2), ("agent-0", 1)):
        (folder / f"{writer}.log").write_text(f"2026-01-31T17:00:0{second}.000Z INFO a: b\n")
    assert main.run(["logs", "--debug", "first-a"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-01-31T17:00:01.000Z agent-0 INFO a: b",
        "2026-01-31T17:00:02.000Z controller INFO a: b",
    ]
    assert main.run(["logs", "--debug", "--tail", "1", "first-a"]) == 0
    assert "controller" in capsys.readouterr().out
    assert main.run(["logs", "--debug", "--since", "2026-02-01T00:00", "first-a"]) == 66
    assert "has no debug logs since 2026-02-01T00:00" in capsys.readouterr().err
    assert main.run(["logs", "--debug", "--follow", "first-a"]) == 2
    assert "--debug cannot be combined with --follow" in capsys.readouterr().err


def ps(capsys, *words):
    assert main.run(["ps", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_ps_lists_command_and_request(runs, capsys):
    first, _, third = ps(capsys)
    assert first["command"] == "train.py --lr 0.1 'a b'"
    assert first["request"] == {**ASKED, "time": ""}
    assert 0 <= first["duration_s"] < 60
    assert (third["command"], third["duration_s"], third["submitted"]) == ("-m eval.py", None, "")


def test_ps_shows_relative_times_in_its_table(runs, capsys):
    job = runs / "first-a" / "attempts" / "2" / "job.json"
    record = json.loads(job.read_text())
    job.write_text(json.dumps({**record, "submitted": "2020-01-31T10:00:00+00:00"}))
    assert main.run(["ps"]) == 0
    heading, first, second, _ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "state", "job", "nodes", "submitted", "duration", "command"]
    assert " days ago  " in first
    assert " s ago  " in second
    assert second.endswith("s       train.py --lr 0.1 'a b'")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--state", "failed"], ["first-a", "second-b"]),
        (["--state", "F", "-n", "1"], ["second-b"]),
        (["--state=running", "--state", "f,pd"], ["first-a", "second-b"]),
        (["--state=unsubmitted"], ["third-c"]),
        (["--state=R"], []),
        (["-n", "2"], ["second-b", "third-c"]),
        (["-n2"], ["second-b", "third-c"]),
        (["-n", "0"], []),
        (["--last=9"], ["first-a", "second-b", "third-c"]),
    ],
)
def test_ps_selects_runs_by_state_and_number(words, names, runs, capsys):
    assert [row["run"] for row in ps(capsys, *words)] == names


def test_ps_refuses_an_unknown_state(runs, capsys):
    assert main.run(["ps", "--state", "rnning"]) == 2
    message = capsys.readouterr().err
    assert "unknown state 'RNNING'" in message
    assert "PENDING" in message
    assert main.run(["ps", "--state", "running"]) == 0
    assert "no RUNNING runs in" in capsys.readouterr().err


def test_status_shows_command_request_and_time(runs, capsys):
    assert main.run(["status", "first-a"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["command"] == "train.py --lr 0.1 'a b'"
    assert rows["request"] == "2 nodes × 4 ranks, partition low"
    assert (rows["attempts"], rows["restarts"], rows["elapsed"]) == ("2", "2", "0 s")
    assert main.run(["status", "--json", "first-a"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["request"] == {**ASKED, "time": ""}
    assert (facts["restarts"], facts["restarts_allowed"], facts["remaining_s"]) == (2, None, None)


def test_status_shows_the_restart_limit(runs, capsys):
    run = RunDir.open(runs / "third-c")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        facts = {"attempt": 1, "pid": 1, "job": "7", "saved": -1, "slots": 1}
        writer.write(events.AttemptStarted(**facts, restarts=3))
    assert main.run(["status", "third-c"]) == 0
    assert "restarts   0 of 3\n" in capsys.readouterr().out


def test_ps_and_status_accept_a_damaged_request(runs, capsys):
    (runs / "first-a" / "spec.toml").write_text("script = [")
    assert [row["command"] for row in ps(capsys)][-1] == ""
    assert main.run(["status", "first-a"]) == 0
    assert "\nrequest" not in capsys.readouterr().out
