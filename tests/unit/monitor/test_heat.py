"""Ranks over time."""

import json

from hypothesis import given
from hypothesis import strategies as st

from echelon.monitor.heat import KINDS, HeatMap, parse_cells, recall
from echelon.run.series import Sample, render_sample


def sample(at_s, rank, steps, *, util=None, busy=None):
    means = {f"rank{rank}.steps": steps, "cpu": 0.5, "rankx.steps": 1.0, "gpu9.util": 0.1}
    if busy is not None:
        means[f"rank{rank}.busy"] = busy
    if util is not None:
        means["gpu3.util"] = util
    lasts = {f"rank{rank}.gpu": 3} if util is not None else {}
    return Sample(time_s=at_s, means=means, lasts={f"rank{rank}.step": 8, **lasts})


def test_samples_of_several_nodes_meet_in_one_column():
    heat = HeatMap(10)
    heat.feed(sample(100.1, 0, 5.0))
    heat.feed(sample(99.9, 1, 7.0, util=0.5, busy=0.978))
    assert heat.since(0, 3) == [
        {
            "time": 100,
            "busy": [None, 98, None],
            "steps": [5.0, 7.0, None],
            "util": [None, 50, None],
        }
    ]


def test_what_nobody_measures_is_not_sent():
    heat = HeatMap(10)
    heat.feed(sample(100, 0, 5.0))
    assert heat.since(0, 1) == [{"time": 100, "steps": [5.0]}]


def test_only_what_is_new_is_told_again():
    heat = HeatMap(10)
    for at_s in (1, 2, 3):
        heat.feed(sample(at_s, 0, 5.0))
    seen = heat.version
    assert heat.since(seen, 1) == []
    heat.feed(sample(2, 1, 9.0))  # one that came late
    heat.feed(sample(4, 0, 5.0))
    told = [(one["time"], one["steps"]) for one in heat.since(seen, 2)]
    assert told == [(2, [5, 9]), (4, [5, None])]


def test_what_is_old_goes_and_does_not_come_back():
    heat = HeatMap(3)
    for at_s in range(10):
        heat.feed(sample(at_s, 0, 1.0))
    heat.feed(sample(2, 0, 1.0))
    assert [one["time"] for one in heat.since(0, 1)] == [7, 8, 9]


def test_ranks_that_cannot_be_take_no_memory():
    heat = HeatMap(3)
    heat.feed(sample(1, 10**9, 1.0))
    heat.feed(sample(1, 0, 2.0))
    assert heat.since(0, 2) == [{"time": 1, "steps": [2.0, None]}]


def test_numbers_that_are_none_are_left_out():
    heat = HeatMap(3)
    heat.feed(sample(1, 0, float("nan"), busy=float("nan")))
    assert heat.since(0, 1) == [{"time": 1, "busy": [None], "steps": [None]}]


@given(
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(0, 9999),
)
def test_the_short_way_to_read_a_line_finds_the_same(steps, busy, util, rank):
    one = sample(12.0, rank, steps, util=util, busy=busy)
    fed, read = HeatMap(3), HeatMap(3)
    fed.feed(one)
    read.put(12, parse_cells(render_sample(one).encode()))
    [whole], [short] = fed.since(0, rank + 1), read.since(0, rank + 1)
    assert whole.keys() == short.keys()
    assert all(
        abs(whole[kind][-1] - short[kind][-1]) <= 1e-2 * steps + 1 for kind in ("busy", "steps")
    )
    assert not util or abs(whole["util"][-1] - short["util"][-1]) <= 1


PIECES = (
    *(b'"rank3.busy":', b'"rank3.steps":', b'"rank7.gpu":', b'"rank7.util":', b'"gpu2.util":'),
    *(b"2", b"0.5", b"1e999", b"nan", b"-", b",", b"}"),
)


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6))).map(b"".join))
def test_a_damaged_line_adds_only_ranks_that_it_names_and_can_be_sent(line):
    cells = parse_cells(line)
    assert cells.keys() <= set(KINDS)
    assert all(b'"rank%d.' % rank in line for values in cells.values() for rank in values)
    heat = HeatMap(3)
    heat.put(1, cells)
    (column,) = heat.since(0, 10)
    json.dumps(column, allow_nan=False)
    assert all(len(row) == 10 for kind, row in column.items() if kind in KINDS)


def test_what_was_before_is_recalled_from_files(tmp_path):
    files = [tmp_path / "a", tmp_path / "b", tmp_path / "missing"]
    for rank, path in enumerate(files[:2]):
        lines = [render_sample(sample(100 + at, rank, 1.0 + at)) for at in range(20)]
        path.write_text("\n".join(["no sample", *lines, '{"time":120,"torn']))
    heat = HeatMap(5)
    recall(heat, files, 5)
    told = [(one["time"], one["steps"]) for one in heat.since(0, 2)]
    assert told == [(at_s, [at_s - 99, at_s - 99]) for at_s in range(115, 120)]


def test_of_many_nodes_the_same_seconds_are_recalled(tmp_path):
    files = [tmp_path / str(node) for node in range(60)]
    for rank, path in enumerate(files):
        shift_s = rank / 120  # less than half a second
        lines = [render_sample(sample(100 + at + shift_s, rank, 1.0)) for at in range(120)]
        path.write_text("\n".join([*lines, ""]))
    heat = HeatMap(120)
    recall(heat, files, 120)
    columns = heat.since(0, 60)
    assert [one["time"] for one in columns] == list(range(100, 220, 4))
    assert all(one["steps"] == [1.0] * 60 for one in columns)
