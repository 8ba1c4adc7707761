"""The report as a page: what is in it, and that hostile text stays text."""

from dataclasses import replace

from echelon.monitor.accounting import Accounts
from echelon.monitor.advice import Facts, Finding, RankFigures
from echelon.monitor.charts import bars, curve
from echelon.monitor.page_report import render_page
from echelon.monitor.report import Report, render, render_short
from echelon.monitor.state import RunState
from echelon.run.metrics import MetricEvent
from eventlines import at

EVIL = "</title><script>alert(1)</script>"


def make(*, text="train"):
    state = RunState(run_id=text)
    state.feed_event(1, at(10, "attempt", job=text))
    state.feed_event(1, at(11, "joined", node=0, name=text))
    state.feed_event(1, at(12, "generation", generation=0, world_size=2, nodes=1))
    why = {"failure": {"rank": 1, "node": text, "message": text, "cause": "user"}}
    state.feed_event(1, at(15, "restart", verdict=why))
    state.feed_event(1, at(16, "generation", generation=1, world_size=2, nodes=1))
    state.feed_event(1, at(30, "exited", rank=0, generation=1, code=1, signal=0, step=41))
    state.feed_event(1, at(30, "verdict", **why))
    state.feed_event(1, at(31, "ended", state=text, why=f"rank 1 on {text}: {text}"))
    for step in range(3):
        state.feed_metric(at(20, "step", MetricEvent, step=step, metrics={text: 1.0 / (1 + step)}))
    ranks = [
        RankFigures(rank=0, node=text, data=0.1, comm=0.5, gpu_util=0.9),
        RankFigures(rank=1, node=text, gpu_util=0.25),
    ]
    spent_us = {"productive": 30_000_000, "launch": 10_000_000}
    accounts = Accounts(spent_us=spent_us, allocated_us=40_000_000, gpus=True)
    return Report(
        state=state,
        accounts=accounts,
        facts=Facts(seconds=accounts.seconds, trained_s=15.0, ranks=ranks),
        findings=[Finding(code="straggler", seen=text, change=f"leave out {text}")],
    )


def test_it_holds_what_matters():
    page = render_page(make(), now_s=1e9)
    for text in ("75% of 40 GPU-seconds", "productive", "launch", "rank 1", "leave out train"):
        assert text in page
    assert page.count("<svg") == 3  # time, GPUs, the one metric
    assert "job train, restarted: rank 1 on train: train" in page
    assert "ended: rank 1 on train: train" in page
    assert "2001-09-09 01:46:40 UTC" in page


def test_it_needs_nothing_else_and_runs_nothing():
    page = render_page(make(text=EVIL), now_s=1e9)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page.replace("http-equiv", "")
    assert "src=" not in page.replace("default-src", "").replace("style-src", "")


def test_of_a_run_that_has_not_begun():
    empty = Report(
        state=RunState(run_id="r"),
        accounts=Accounts(spent_us={}, allocated_us=0),
        facts=Facts(seconds={}, trained_s=0.0),
        findings=[],
    )
    assert "r: QUEUED" in render_page(empty, now_s=1.0)
    assert render_short(empty) == ""
    assert render(empty) == "r: QUEUED"


def test_in_short():
    assert render_short(make()).split("\n") == [
        "75% of 40 GPU-seconds went into training; details: echelon report train",
        "train",
        "hint: leave out train",
    ]


def test_a_run_too_short_to_judge_is_not_called_good():
    short = replace(make(), findings=[])
    assert render(short).endswith("no suggestions: the ranks ran for less than a minute")
    assert "the ranks ran for less than a minute" in render_page(short, now_s=1.0)
    long = replace(short, facts=replace(short.facts, trained_s=3600.0))
    assert render(long).endswith("\n  no suggestions")


def test_a_rank_that_is_gone_has_told_its_last_step():
    assert make().state.ranks[0].numbers["step"] == 41


def test_charts_bear_anything():
    assert curve([]) == ""
    assert "polyline" in curve([(1.0, 5.0)])
    assert 'width="0.0"' in bars([("none", 0.0)])
    assert "&lt;b&gt;" in bars([("<b>", 1.0)])
