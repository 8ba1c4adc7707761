"""`echelon export`: files for other programs."""

import csv
import json
import os
import time

import pytest

from echelon.cli import main
from echelon.core.jobs import Job
from echelon.run.attempts import submit_attempt
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.series import Sample, SeriesWriter
from eventlines import raw

FILES = ["attempts.csv", "metrics.csv", "telemetry.csv", "time.csv"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that has not started, below the current folder."""
    monkeypatch.chdir(tmp_path)
    run = RunDir.create(tmp_path / "runs", "r-1")
    run.spec.write_text('script = "train.py"\n')
    return run


@pytest.fixture
def begun(run):
    """The same run after two attempts."""
    for attempt in (1, 2):
        with EventWriter(run.events_of(f"controller-{attempt}"), clock=time.time) as events:
            events.write(raw("attempt", job=str(attempt)))
            events.write(raw("joined", node=0, name=f"node{attempt}"))
            events.write(raw("generation", generation=0, world_size=1, nodes=1))
        run.telemetry(attempt, 0, 0).parent.mkdir(exist_ok=True)
        series = SeriesWriter(lambda level, attempt=attempt: run.telemetry(attempt, 0, level))
        series.append(Sample(time_s=attempt, means={"rank0.data": 0.25}))
    with EventWriter(run.metrics, clock=time.time) as metrics:
        metrics.write(raw("step", step=5, metrics={"=loss": 0.5}))
    return run


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_export_writes_a_folder_named_after_the_run(begun, tmp_path, capsys):
    assert main.run(["export", "r-1", "--csv"]) == 0
    folder = tmp_path / "r-1-csv"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert "r-1-csv/metrics.csv: 1 row\n" in capsys.readouterr().out
    assert read(folder / "metrics.csv")[0]["'=loss"] == "0.5"
    rows = [(row["attempt"], row["host"], row["source"]) for row in read(folder / "telemetry.csv")]
    assert rows == [("1", "node1", "rank0"), ("2", "node2", "rank0")]
    assert [row["job"] for row in read(folder / "attempts.csv")] == ["1", "2"]


def test_export_creates_the_named_folder(begun, tmp_path):
    assert main.run(["export", "r-1", "--csv", "a/b"]) == 0
    assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == FILES


def test_export_overwrites_files_only_with_force(begun, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/time.csv").write_text("mine")
    (tmp_path / "out/metrics.csv").symlink_to("nowhere")
    assert main.run(["export", "r-1", "--csv", "out"]) == 73
    assert "already contains metrics.csv, time.csv" in capsys.readouterr().err
    assert (tmp_path / "out/time.csv").read_text() == "mine"
    assert not (tmp_path / "out/telemetry.csv").exists()
    assert main.run(["export", "r-1", "--csv", "out", "--force"]) == 0
    assert (tmp_path / "out/time.csv").read_text().startswith("phase,seconds,share\n")
    assert not (tmp_path / "nowhere").exists()  # not through a link


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["export", "r-1", "--csv"], 66, "has no measurements yet"),
        (["export", "r-1"], 2, "echelon export r-1 --csv"),
        (["export", "r-9", "--csv"], 66, "no run 'r-9' in"),
    ],
)
def test_an_invalid_export_is_an_error(run, capsys, words, code, message):
    assert main.run(words) == code
    assert message in capsys.readouterr().err


def test_export_into_a_file_is_an_error(begun, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert main.run(["export", "r-1", "--csv", "out"]) == 73
    assert "is not a directory" in capsys.readouterr().err


def test_report_and_status_agree_on_a_run_with_a_killed_controller(run, capsys):
    dead = f"local:{os.uname().nodename}:1:0"
    submit_attempt(run, lambda _: dead, lambda job: Job(id=job, state="RUNNING", output=""))
    with EventWriter(run.events_of("controller-1"), clock=time.time) as events:
        events.write(raw("attempt", job=dead))
        events.write(raw("generation", generation=0, world_size=1, nodes=1))
    states = []
    for command in ("status", "report"):
        assert main.run([command, "r-1", "--json"]) == 0
        states.append(json.loads(capsys.readouterr().out)["state"])
    assert states[0] == states[1] != "RUNNING"
