"""Ranks over time."""

from echelon.core.series import Sample
from echelon.monitor.heat import HeatMap


def sample(at_s, rank, steps, util=None):
    means = {f"rank{rank}.steps": steps} | ({"gpu3.util": util} if util is not None else {})
    lasts = {f"rank{rank}.gpu": 3} if util is not None else {}
    return Sample(time_s=at_s, means=means, lasts=lasts)


def test_samples_of_several_nodes_meet_in_one_column():
    heat = HeatMap(10)
    heat.feed(sample(100.1, 0, 5.0))
    heat.feed(sample(99.9, 1, 7.0, util=0.5))
    assert heat.whole(3) == [
        {"time": 100, "steps": [5.0, 7.0, None], "util": [None, 0.5, None]},
    ]


def test_only_what_is_new_is_told_again():
    heat = HeatMap(10)
    for at_s in (1, 2, 3):
        heat.feed(sample(at_s, 0, 5.0))
    heat.whole(1)
    assert heat.news(1) == []
    heat.feed(sample(2, 1, 9.0))  # one that came late
    heat.feed(sample(4, 0, 5.0))
    assert [(one["time"], one["steps"]) for one in heat.news(2)] == [(2, [5, 9]), (4, [5, None])]


def test_what_is_old_goes():
    heat = HeatMap(3)
    for at_s in range(10):
        heat.feed(sample(at_s, 0, 1.0))
    assert [one["time"] for one in heat.whole(1)] == [7, 8, 9]
    assert heat.news(1) == []
