import json

import pytest

from echelon.core.units import render_time
from echelon.run.metrics import StepLogged, render_progress
from echelon.train import progress as module
from echelon.train.progress import Progress


@pytest.fixture
def make(tmp_path, monkeypatch):
    def begin(folder=None, *, speaks=True, terminal=False, **more):
        monkeypatch.setattr(module.sys.stderr, "isatty", lambda: terminal, raising=False)
        usual = {"epochs": 2, "length": 100, "unit": "samples", "clock": lambda: 5.0}
        return Progress(folder, speaks=speaks, **{**usual, **more})

    return begin


def update(progress, done=50, **means):
    told = {"loss": 0.5, **means}
    progress.update(step=7, epoch=0, done=done, means=told, data_wait=0.25)


def test_metrics_are_written_for_programs(tmp_path, make):
    progress = make(tmp_path)
    update(progress, step=3.0, time=1.0)  # a user's metric may have any name
    progress.end_epoch(step=9, epoch=1, metrics={"accuracy": 0.9})
    progress.close()
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["kind"], first["step"], first["done"], first["length"]) == ("step", 7, 50, 100)
    assert first["metrics"]["loss"] == 0.5
    assert first["metrics"]["data_wait"] == 0.25
    assert first["metrics"]["time"] == 1.0
    assert second == {
        "time": 5.0, "kind": "validation", "step": 9, "epoch": 1, "metrics": {"accuracy": 0.9},
    }  # fmt: skip
    assert list((tmp_path / "tensorboard").iterdir())


def test_lines_of_fast_steps_are_written_together(tmp_path, make, monkeypatch):
    monkeypatch.setattr(module, "_WRITE_S", 3600.0)
    progress = make(tmp_path, clock=iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).__next__)

    def written():
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        return [(line["done"], line["time"]) for line in map(json.loads, lines)]

    update(progress, 10)  # the first one is written at once; the files took a time of their own
    assert written() == [(10, 2.0)]
    update(progress, 20)
    update(progress, 30)
    assert written() == [(10, 2.0)]
    update(progress, 100)  # the last one of an epoch
    assert written() == [(10, 2.0), (20, 3.0), (30, 4.0), (100, 5.0)]
    update(progress, 40)
    progress.close()
    assert written()[-1] == (40, 6.0)


def test_a_validation_is_written_at_once(tmp_path, make, monkeypatch):
    monkeypatch.setattr(module, "_WRITE_S", 3600.0)
    progress = make(tmp_path)
    update(progress)
    update(progress, 60)
    progress.end_epoch(step=9, epoch=1, metrics={"accuracy": 0.9})
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    progress.close()


def test_one_rank_alone_speaks(tmp_path, make, capsys):
    progress = make(tmp_path, speaks=False)
    update(progress, done=100)
    progress.end_epoch(step=9, epoch=1, metrics={"accuracy": 0.9})
    progress.tell("hello")
    progress.close()
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_lines_are_few_where_there_is_no_terminal(make, capsys):
    progress = make()
    for done in range(10, 110, 10):
        update(progress, done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("epoch 1/2 100%  loss 0.5000")


def test_a_terminal_gets_a_bar_in_one_line(make, capsys):
    progress = make(terminal=True)
    update(progress, 50)
    update(progress, 100)
    drawn = capsys.readouterr().err
    assert drawn.count("\n") == 1
    assert "[######      ]  50%" in drawn
    assert drawn.count("\r\x1b[K") == 2


def test_a_disk_that_fills_up_interrupts_the_writing_not_the_training(
    tmp_path, make, capsys, monkeypatch
):
    monkeypatch.setattr(module, "_WRITE_S", 0.0)
    progress = make(tmp_path, retry_s=0)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("echelon.train.progress.EventWriter.write_all", fail)
        update(progress, 50)
        update(progress, 60)
    assert capsys.readouterr().err.count("cannot write metrics") == 1
    with monkeypatch.context() as full:
        full.setattr("echelon.train.progress.EventWriter", fail)
        update(progress, 70)
    update(progress, 80)
    progress.close()
    assert "writing metrics again; 3 records are missing" in capsys.readouterr().err
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["done"] for line in lines] == [80]


def test_a_full_disk_is_not_tried_again_before_the_interval_is_over(
    tmp_path, make, capsys, monkeypatch
):
    monkeypatch.setattr(module, "_WRITE_S", 0.0)
    progress, tries = make(tmp_path, retry_s=3600), []

    def fail(*_, **__):
        tries.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("echelon.train.progress.EventWriter.write_all", fail)
    for done in (50, 60, 70):
        update(progress, done)
    assert len(tries) == 1
    assert "cannot write metrics, retrying every 3600 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (89, "89 s"), (150, "2 min 30 s"), (1800, "30 min"), (9000, "2 h 30 min")],
)
def test_times_are_said_as_people_do(seconds, text):
    assert render_time(seconds) == text


def test_a_line_fits_a_terminal():
    logged = StepLogged(
        step=9_999,
        epoch=9,
        epochs=14,
        done=59_999,
        length=60_000,
        unit="samples",
        left_s=599,
        metrics={"loss": 0.1234, "rate": 1234.5},
    )
    assert len(render_progress(logged, bar=True)) < 80
