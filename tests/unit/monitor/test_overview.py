"""All runs of a folder."""

import json
import os
import time
from datetime import UTC, datetime

import pytest

from echelon.monitor import overview
from echelon.monitor.overview import Overview
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from eventlines import raw


def make(runs, name, *events):
    run = RunDir.create(runs, name)
    run.spec.write_text("")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        for kind, data in events:
            writer.write(raw(kind, **data))
    return run


BEGUN = [
    ("attempt", {"job": "7"}),
    ("generation", {"generation": 0, "world_size": 4, "nodes": 1}),
    ("alive", {"generation": 0, "step": 30}),
]


def test_each_run_in_a_line_the_newest_first(tmp_path):
    make(tmp_path, "r-1", *BEGUN, ("ended", {"state": "COMPLETED"}))
    run = make(tmp_path, "r-2", *BEGUN)
    seen = Overview(tmp_path)
    told = [(one["run"], one["phase"], one["ranks"], one["step"]) for one in seen.rows()]
    assert told == [("r-2", "RUNNING", 4, 30), ("r-1", "COMPLETED", 4, 30)]
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        writer.write(raw("alive", generation=0, step=40))
    seen._due_s = 0.0
    assert seen.rows()[0]["step"] == 40


def test_a_clock_that_was_set_adds_nothing_to_the_time_of_a_running_run(tmp_path):
    """The page subtracts the beginning from the time of the clock that was set."""
    began_s, days_s = time.time(), 10 * 86400.0
    run = make(tmp_path, "r-1", *BEGUN)
    os.utime(run.events_of("controller-1"), (began_s + days_s,) * 2)
    (row,) = Overview(tmp_path).rows()
    assert row["began"] == pytest.approx(began_s + days_s, abs=5)
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        writer.write(raw("ended", state="COMPLETED"))
    os.utime(run.events_of("controller-1"), (began_s + days_s,) * 2)
    (row,) = Overview(tmp_path).rows()
    assert row["began"] == pytest.approx(began_s, abs=5)


def test_what_takes_too_long_comes_later(tmp_path, monkeypatch):
    make(tmp_path, "r-1", *BEGUN)
    seen = Overview(tmp_path)
    monkeypatch.setattr(overview, "_AT_ONCE_S", -1.0)
    assert seen.rows()[0]["phase"] is None
    monkeypatch.setattr(overview, "_AT_ONCE_S", 5.0)
    seen._due_s = 0.0
    assert seen.rows()[0]["phase"] == "RUNNING"


def test_there_may_be_none(tmp_path):
    assert Overview(tmp_path / "nowhere").rows() == []


def test_runs_are_measured_with_the_newest_of_their_metrics(tmp_path):
    run = make(tmp_path, "r-1", *BEGUN)
    with EventWriter(run.metrics, clock=time.time) as writer:
        for step in range(1000):
            writer.write(raw("step", step=step, metrics={"loss": 1.0 / (step + 1)}))
        writer.write(raw("validation", step=999, metrics={"accuracy": 0.5}))
    make(tmp_path, "r-2")
    newest, older = Overview(tmp_path).samples()
    assert (newest.run, newest.phase, newest.metrics) == ("r-2", "QUEUED", {})
    assert (older.step, older.ranks, older.attempts, older.restarts) == (30, 4, 1, 0)
    assert older.metrics == {"loss": 0.001, "validation/accuracy": 0.5}


def test_a_run_that_ended_is_measured_anew_after_it_was_resumed(tmp_path):
    run = make(tmp_path, "r-1", *BEGUN, ("ended", {"state": "CANCELLED"}))
    seen = Overview(tmp_path)
    (first,) = seen.samples()
    with EventWriter(run.events_of("controller-2"), clock=time.time) as writer:
        for kind, data in (*BEGUN, ("alive", {"generation": 0, "step": 40})):
            writer.write(raw(kind, **{**data, "attempt": 2} if kind == "attempt" else data))
        writer.write(raw("ended", state="CANCELLED"))
    seen._due_s = 0.0
    (second,) = seen.samples()
    assert (first.step, second.step) == (30, 40)
    assert second.attempts == 2


def test_a_run_has_its_command_request_and_time_in_the_queue(tmp_path):
    run = make(tmp_path, "r-1", *BEGUN)
    run.spec.write_text('script = "train.py"\nargs = ["--lr", "0.1"]\nnodes = "2"\n')
    run.attempt(1).mkdir()
    submitted = datetime.fromtimestamp(time.time() - 100, UTC).isoformat(timespec="seconds")
    (run.attempt(1) / "job.json").write_text(json.dumps({"job_id": "7", "submitted": submitted}))
    seen = Overview(tmp_path)
    (row,) = seen.rows()
    assert (row["command"], row["request"]) == ("train.py --lr 0.1", "2 nodes × 1 rank")
    (sample,) = seen.samples()
    assert sample.seconds["queue"] > 50
