"""A run as tables: what counts, what is left out, and what names may hold."""

import csv

import pytest

from echelon.monitor.accounting import account
from echelon.monitor.export import (
    Table,
    format_time,
    neutralise,
    tabulate_attempts,
    tabulate_metrics,
    tabulate_samples,
    tabulate_time,
    write_csv,
)
from echelon.monitor.state import RunState
from echelon.run.metrics import MetricEvent
from echelon.run.series import Sample
from eventlines import at

BEGAN_S = 1_700_000_000.0


def metric(step, kind="step", /, **metrics):
    return at(BEGAN_S, kind, MetricEvent, step=step, metrics=metrics)


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_each_step_has_one_row_and_each_metric_a_column():
    table = tabulate_metrics(
        [metric(10, loss=0.5), metric(20, loss=0.4, rate=7), metric(20, "validation", accuracy=0.9)]
    )
    assert table.columns == ["time", "kind", "step", "loss", "rate", "accuracy"]
    assert [row[1:] for row in table.rows] == [
        ["step", 10, 0.5, None, None],
        ["step", 20, 0.4, 7, None],
        ["validation", 20, None, None, 0.9],
    ]
    assert table.rows[0][0] == "2023-11-14 22:13:20.000"


def test_the_later_record_of_a_step_that_was_done_again_counts():
    told = [metric(10, loss=1), metric(20, loss=2), metric(20, "validation", loss=3)]
    again = [metric(20, loss=4), metric(20, "validation", loss=5)]
    assert [row[1:] for row in tabulate_metrics([*told, *again]).rows] == [
        ["step", 10, 1],
        ["step", 20, 4],
        ["validation", 20, 5],
    ]


def test_what_was_told_of_steps_that_were_taken_back_is_void():
    told = [metric(10, loss=1), metric(20, loss=2), metric(30, loss=3), metric(15, loss=4)]
    assert [row[2:] for row in tabulate_metrics(told).rows] == [[10, 1], [15, 4]]


def test_what_is_no_metric_is_left_out():
    odd = [
        at(1.0, "other", MetricEvent, step=1, metrics={"a": 1}),
        at(1.0, "step", MetricEvent, step="x", metrics={"a": 1}),
        at(0.0, "step", MetricEvent, step=1, metrics=[1]),
        at(0.0, "step", MetricEvent, step=2, metrics={"a": "b", "c": True, "d": 1}),
    ]
    table = tabulate_metrics(odd)
    assert table.columns[3:] == ["d"]
    assert table.rows == [["", "step", 1, None], ["", "step", 2, 1]]


def test_a_metric_may_be_called_like_a_column_of_ours():
    table = tabulate_metrics([metric(1, **{"step": 5, "time": 6, "'=a": 1, "=a": 2})])
    assert table.columns == ["time", "kind", "step", "step_", "time_", "'=a", "'=a_"]


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1"])
def test_a_text_is_never_a_formula(text):
    assert neutralise(text).startswith("'")


def test_hostile_names_stay_one_cell(tmp_path):
    name = '=cmd|" /C calc"!A0,\r\nnext\0\udcff'
    write_csv(tabulate_metrics([metric(1, **{name: -0.5})]), tmp_path / "m.csv")
    (head, row) = read(tmp_path / "m.csv")
    assert head[3:] == ['\'=cmd|" /C calc"!A0,\nnext?']
    assert row[3:] == ["-0.5"]  # a number is a number, whatever its sign


def test_measurements_are_a_row_for_each_value():
    sample = Sample(time_s=BEGAN_S, count=10, means={"cpu": 0.5}, peaks={"gpu0.mem": 7.0})
    table = tabulate_samples([(2, 1, "node1", [sample])])
    assert table.columns[4:] == ("source", "name", "value", "samples")
    when = "2023-11-14 22:13:20.000"
    assert list(table.rows) == [
        [when, 2, 1, "node1", "gpu0", "mem", 7.0, 10],
        [when, 2, 1, "node1", "", "cpu", 0.5, 10],
    ]


VERDICT = {"failure": {"rank": 1, "node": "node1", "message": "ValueError: =x"}}


def test_attempts_are_a_row_for_each_set_of_ranks():
    state = RunState(run_id="r-1")
    for number, kind, data in [
        (1, "attempt", {"job": "7"}),
        (1, "generation", {"generation": 0, "world_size": 4, "nodes": 2}),
        (1, "spent", {"generation": 0}),
        (1, "restart", {"verdict": VERDICT}),
        (1, "generation", {"generation": 1, "world_size": 2, "nodes": 1}),
        (1, "ended", {"state": "TIMEOUT", "why": "the time limit is near"}),
        (2, "attempt", {"job": "8"}),
        (2, "verdict", VERDICT),
        (2, "ended", {"state": "FAILED", "why": "rank 1 on node1: ValueError: =x"}),
    ]:
        state.feed_event(number, at(BEGAN_S, kind, **data))
    when, why = "2023-11-14 22:13:20.000", "rank 1 on node1: ValueError: =x"
    assert tabulate_attempts(state).rows == [
        [1, 0, "7", when, when, 4, 2, "", why],
        [1, 1, "7", when, when, 2, 1, "TIMEOUT", "the time limit is near"],
        [2, None, "8", when, when, None, None, "FAILED", why],
    ]


def test_time_adds_up_to_what_was_allocated():
    state = RunState(run_id="r-1")
    for record in (
        at(BEGAN_S, "attempt", slots=2),
        at(BEGAN_S + 10, "generation", generation=0, world_size=2),
        at(BEGAN_S + 40, "ended"),
    ):
        state.feed_event(1, record)
    state.attempts[1].submitted_s = BEGAN_S - 5
    accounts = account(state)
    rows = {phase: (seconds, share) for phase, seconds, share in tabulate_time(accounts).rows}
    assert rows["queue"] == (5, None)
    assert rows["launch"] == (20, 0.25)
    assert rows["running"] == (60, 0.75)
    assert sum(share for _, share in rows.values() if share) == 1
    assert tabulate_time(account(RunState(run_id="r-1"))).rows == []


def test_a_table_that_cannot_be_finished_leaves_what_was_there(tmp_path):
    def rows():
        yield ["a"]
        raise ValueError("torn")

    path = tmp_path / "x.csv"
    path.write_text("old")
    with pytest.raises(ValueError, match="torn"):
        write_csv(Table(name="x.csv", columns=["a"], rows=rows()), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.csv"]
    assert path.read_text() == "old"


@pytest.mark.parametrize("odd", [None, 0.0, float("nan"), float("inf"), 1e300])
def test_what_is_no_time_is_left_empty(odd):
    assert format_time(odd) == ""
