"""What is sent of a run."""

from echelon.core.records import render_json
from echelon.monitor.accounting import account
from echelon.monitor.snapshot import RANK_FIELDS, Curves, describe, draw_curve, shorten
from echelon.monitor.state import RunState
from echelon.run.series import Sample
from eventlines import at


def test_no_more_digits_than_are_seen():
    assert shorten(0.123456) == 0.1235
    assert shorten(123456.7) == 123457
    assert shorten(None) is None
    assert shorten(float("inf")) is None


def test_steps_that_were_done_again_are_drawn_once():
    points = [(1, 9.0), (2, 8.0), (3, 7.0), (2, 6.0), (3, 5.0)]
    assert draw_curve(points, 100) == [[1, 2, 3], [9, 6, 5]]


def test_long_curves_are_thinned():
    steps, values = draw_curve([(step, 2.0 * step) for step in range(1000)], 10)
    assert len(steps) == len(values) == 10
    assert (steps[0], values[0]) == (49.5, 99)


def test_a_curve_is_sent_when_it_has_changed_so_that_one_could_see_it():
    curves, points = Curves(), [(step, 1.0) for step in range(10_000)]
    assert curves.feed({"loss": points}, 1)
    points.append((10_000, 1.0))
    assert not curves.feed({"loss": points}, 2)
    assert curves.since(0).keys() == {"loss"}
    assert curves.since(1) == {}
    points += [(step, 1.0) for step in range(10_001, 10_030)]
    assert curves.feed({"loss": points, "lr": [(1, 1.0)]}, 3)
    assert curves.since(1).keys() == {"loss", "lr"}


def test_of_very_many_metrics_some_are_sent():
    curves = Curves()
    curves.feed({f"m{n}": [(1, 1.0)] for n in range(5000)}, 1)
    assert len(curves.since(0)) == 200


def test_what_a_browser_cannot_read_is_cleaned():
    assert (
        render_json({"a": [1.5, float("nan"), {"b": float("-inf")}]})
        == '{"a":[1.5,null,{"b":null}]}'
    )


def test_of_a_script_that_tells_no_steps_none_are_sent():
    state, now = RunState(run_id="r"), iter(range(10))
    for kind, data in (
        ("attempt", {"job": "7"}),
        ("generation", {"generation": 0, "world_size": 2, "nodes": 1}),
        ("exited", {"rank": 1, "code": 0, "step": -1}),
    ):
        state.feed_event(1, at(next(now), kind, **data))
    lasts = {"rank0.step": -1, "rank0.generation": 0}
    state.feed_sample(1, 0, Sample(time_s=next(now), lasts=lasts))
    sent = describe(state, account(state))
    assert sent["head"]["step"] == -1
    assert [rank[RANK_FIELDS.index("step")] for rank in sent["ranks"]] == [None, None]
