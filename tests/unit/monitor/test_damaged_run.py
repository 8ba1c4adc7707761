"""Events with impossible values: the run shows what is left, and hides no other."""

import json

import pytest

from echelon.core.records import MOST_RANKS, render_json
from echelon.monitor.export import make_tables, write_csv
from echelon.monitor.overview import Overview
from echelon.monitor.reading import RunReader
from echelon.monitor.report import make_report, render
from echelon.monitor.watched import Watched
from recorded_run import record_run

ODD = [
    {"time": float("nan"), "kind": "attempt", "job": "1"},
    {"time": 1e300, "kind": "attempt", "job": "1"},
    {"time": 1.0, "kind": "generation", "generation": 10**400, "world_size": 10**8, "nodes": -1},
    {"time": 1.0, "kind": "generation", "generation": 2, "world_size": -3, "nodes": 1e300},
    {"time": 1.0, "kind": "joined", "node": {"a": [1]}, "name": ["x"]},
    {"time": 1.0, "kind": "exited", "rank": -1, "code": "x", "step": 2**70},
    {"time": 1.0, "kind": "verdict", "failure": [1], "victims": 3, "stacks": 1},
    {"time": 1.0, "kind": "alive", "generation": [], "step": 10**400},
    {"time": 1.0, "kind": "ended", "state": {"a": 1}, "why": None},
]


@pytest.mark.parametrize("event", ODD, ids=lambda event: f"{event['kind']} {event['time']}")
def test_an_event_with_odd_values_breaks_nothing(tmp_path, event):
    run, good = record_run(tmp_path / "runs", "odd-abcd"), record_run(tmp_path / "runs")
    with run.events_of("controller-2").open("a") as file:
        file.write(json.dumps(event) + "\n")
    rows = Overview(tmp_path / "runs").rows()
    assert {row["run"] for row in rows} == {"odd-abcd", good.run_id}
    json.dumps(rows, allow_nan=False)
    assert len(RunReader(run).read().ranks) < MOST_RANKS
    json.loads(Watched(run).news(0)[1], parse_constant=pytest.fail)
    assert render(make_report(run))
    for table in make_tables(run):
        write_csv(table, tmp_path / table.name)


def test_numbers_of_a_metric_may_be_anything(tmp_path):
    run = record_run(tmp_path / "runs")
    values = {"loss": 1e308, "rate": float("-inf"), "big": 10**400, "x": [1], "y": None}
    with run.metrics.open("a") as file:
        for step in (5, 10**400, -7, "x"):
            record = {"time": 1.0, "kind": "step", "step": step, "metrics": values}
            file.write(json.dumps(record) + "\n")
    json.loads(Watched(run).news(0)[1], parse_constant=pytest.fail)
    assert render_json(RunReader(run).read().metrics)
