import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.monitor.openmetrics import RunSample, render_metrics

LINE = re.compile(
    r'[a-z_]+\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\[\\"n])*")?\} '
    r"(?:NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?[0-9]+)?)"
)


def values(text):
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def test_a_run_is_told_with_what_is_known_of_it():
    sample = RunSample(
        run="train-ab12",
        phase="RUNNING",
        began_s=1e9,
        step=30,
        attempts=2,
        restarts=1,
        ranks=4,
        nodes=2,
        seconds={"productive": 12.5},
        metrics={"loss": 0.25, "rate": math.nan},
    )
    text = render_metrics([sample])
    assert values(text) == [
        'echelon_run_state{run="train-ab12",state="RUNNING"} 1.0',
        'echelon_run_start_time_seconds{run="train-ab12"} 1000000000.0',
        'echelon_run_step{run="train-ab12"} 30.0',
        'echelon_run_attempts{run="train-ab12"} 2.0',
        'echelon_run_restarts{run="train-ab12"} 1.0',
        'echelon_run_ranks{run="train-ab12"} 4.0',
        'echelon_run_nodes{run="train-ab12"} 2.0',
        'echelon_run_time_seconds{run="train-ab12",category="productive"} 12.5',
        'echelon_run_metric{run="train-ab12",name="loss"} 0.25',
        'echelon_run_metric{run="train-ab12",name="rate"} NaN',
    ]
    assert "# TYPE echelon_run_step gauge" in text
    assert "# UNIT echelon_run_time_seconds seconds" in text
    assert text.endswith("# EOF\n")


def test_what_is_not_known_is_left_out_and_there_may_be_no_run():
    told = values(render_metrics([RunSample(run="r", phase="QUEUED")]))
    assert not [line for line in told if "step" in line or "time" in line]
    assert values(render_metrics([])) == []


@given(name=st.text(), value=st.floats())
def test_any_name_and_number_is_one_valid_line(name, value):
    (line,) = values(render_metrics([RunSample(run="r", phase=name)]))[:1]
    assert LINE.fullmatch(line), line
    text = render_metrics([RunSample(run="r", phase="RUNNING", metrics={name: value})])
    assert LINE.fullmatch(next(one for one in text.split("\n") if "_metric{" in one))


@pytest.mark.parametrize("count", [50, 51])
def test_a_run_with_very_many_metrics_shows_some(count):
    sample = RunSample(run="r", phase="RUNNING", metrics={f"m{n}": n for n in range(count)})
    assert sum("_metric{" in line for line in values(render_metrics([sample]))) == 50
