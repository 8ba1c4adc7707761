"""What is shown of the tasks of a sweep."""

import json
import time

import pytest

from echelon.monitor.sweep_table import (
    describe_runs,
    describe_sweep,
    find_metric,
    find_parameters,
    read_best,
    read_curve,
    read_last,
    sort_rows,
)
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from recorded_sweep import log_step, record_sweep


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return record_sweep(tmp_path / "runs", {}, rates=("0.1", "0.01", "5", "7"))


def test_the_metric_is_the_first_one_logged_and_has_a_last_and_a_best_value(sweep):
    run = sweep.run(1)
    assert find_metric([sweep.run(3), run]) == "loss"
    assert find_metric([sweep.run(3)]) == ""
    assert read_last(run, "loss") == 0.4
    assert read_best(run, "loss", largest=True) == 2
    assert read_best(run, "loss", largest=False) == 0.4
    assert read_best(sweep.run(3), "loss", largest=True) is None
    assert read_curve(run, "validation/accuracy") == [(5, 0.5)]
    assert read_last(run, "validation/accuracy") == 0.5


def test_numbers_are_sorted_by_size_and_what_is_missing_comes_last():
    rows = [["a", "10"], ["b", ""], ["c", "9"], ["d", "x"]]
    assert [row[0] for row in sort_rows(rows, 1, down=False)] == ["c", "a", "d", "b"]
    assert [row[0] for row in sort_rows(rows, 1, down=True)] == ["a", "c", "d", "b"]


def test_the_page_gets_the_table_and_all_curves(sweep):
    told = describe_sweep(sweep, "")
    assert (told["metric"], told["metrics"]) == ("loss", ["loss", "validation/accuracy"])
    assert [row[1:] for row in told["rows"]] == [
        ["0.1", "COMPLETED", 0.2],
        ["0.01", "COMPLETED", 0.4],
        ["5", "FAILED", 3 / 5],
        ["7", "PENDING", None],
    ]
    assert told["curves"][0] == {
        "run": sweep.run_id(0),
        "x": [1, 2, 3, 4, 5],
        "y": [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
    }
    other = describe_sweep(sweep, "validation/accuracy")
    assert [curve["y"] for curve in other["curves"]] == [[0.5]] * 3


def test_chosen_runs_are_compared_by_the_arguments_in_which_they_differ(tmp_path):
    runs = []
    for number, args in enumerate((["--lr", "0.1", "data"], ["--lr=0.2", "data", "--amp"])):
        run = RunDir.create(tmp_path, f"run-{number}")
        run.spec.write_text(f"args = {json.dumps(args)}\n")
        with EventWriter(run.metrics, clock=time.time) as events:
            events.write(log_step(1, loss=float("nan") if number else 0.5))
        runs.append(run)
    told = describe_runs(runs, "loss")
    assert told["names"] == ["lr", "amp"]
    assert told["rows"] == [
        ["run-0", "0.1 data", "", "PENDING", 0.5],
        ["run-1", "0.2", "yes", "PENDING", "nan"],
    ]
    assert [curve["run"] for curve in told["curves"]] == ["run-0", "run-1"]


@pytest.mark.parametrize(
    ("arguments", "names", "values"),
    [
        ((["20", "0.1"], ["20", "a b"]), ["arguments"], ["20 0.1", "20 'a b'"]),
        ((["--lr", "1"], ["--lr", "1"]), [], []),
    ],
)
def test_arguments_without_names_are_shown_whole(tmp_path, arguments, names, values):
    runs = []
    for number, args in enumerate(arguments):
        runs.append(RunDir.create(tmp_path, f"run-{number}"))
        runs[-1].spec.write_text(f"args = {json.dumps(args)}\n")
    told = describe_runs(runs, "")
    assert told["names"] == names
    assert [value for row in told["rows"] for value in row[1:-2]] == values


@pytest.mark.parametrize(
    ("arguments", "parameters"),
    [
        (["--lr", "1e-3", "--amp", "--width=8"], {"lr": "1e-3", "amp": "yes", "width": "8"}),
        (["--betas", "0.9", "0.95", "-x", "-1e-4"], {"betas": "0.9 0.95", "x": "-1e-4"}),
        (["model.depth=4", "+seed=1", "data/"], {"model.depth": "4", "seed": "1"}),
        (["--name", "a=b"], {"name": "yes", "a": "b"}),
        (["--text=one\ntwo", "--empty="], {"text": "one\ntwo", "empty": ""}),
        (["--", "-", "file"], {}),
    ],
)
def test_parameters_are_found_in_arguments(arguments, parameters):
    assert find_parameters(arguments) == parameters
