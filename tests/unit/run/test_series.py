"""Measurements in files that stay small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.run.series import (
    FOLD,
    Sample,
    SeriesWriter,
    parse_sample,
    read_file,
    read_series,
    render_sample,
    summarise,
)


def sample(at_s, load=0.5, memory=1.0, step=0):
    return Sample(time_s=at_s, means={"load": load}, peaks={"memory": memory}, lasts={"step": step})


@pytest.fixture
def level(tmp_path):
    return lambda number: tmp_path / f"node.{number}.jsonl"


def test_a_summary_keeps_mean_peak_and_last():
    one = summarise([sample(1, 0.2, 5, 10), sample(2, 0.4, 9, 11), sample(3, 0.6, 7, 12)])
    assert (one.time_s, one.count) == (3, 3)
    assert one.means["load"] == pytest.approx(0.4)
    assert (one.peaks, one.lasts) == ({"memory": 9}, {"step": 12})
    again = summarise([one, sample(4, 0.8)])
    assert again.means["load"] == pytest.approx(0.5)  # each first sample counts as one


def test_what_is_there_only_sometimes_is_averaged_over_those_times():
    one = summarise([sample(1, 0.2), Sample(time_s=2), sample(3, 0.4)])
    assert one.means["load"] == pytest.approx(0.3)


@given(
    st.builds(
        Sample,
        time_s=st.integers(0, 2**33).map(float),
        count=st.integers(1, 10**6),
        means=st.dictionaries(st.text(), st.integers(-(10**6), 10**6).map(float)),
        lasts=st.dictionaries(st.text(), st.integers(0, 10**6).map(float)),
    )
)
def test_a_line_says_all_of_it(one):
    assert parse_sample(render_sample(one)) == one


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[]", "null", '{"time":1}', '{"time":"x","count":1}', '{"time":NaN,"count":1}'),
        *('{"time":1,"count":0}', '{"time":1,"count":1,"mean":[1]}', '{"time":1e999,"count":1}'),
    ],
)
def test_a_line_that_is_none_is_passed_over(line):
    assert parse_sample(line) is None


@pytest.mark.parametrize("written", [0, 1, 39, 40, 41, 400, 5000])
def test_files_stay_small_and_nothing_is_lost(level, tmp_path, written):
    writer = SeriesWriter(level, lines=40)
    for number in range(written):
        writer.append(sample(number, load=number % 2, memory=number, step=number))
    kept = read_series(level)
    assert sum(one.count for one in kept) == written
    assert [one.time_s for one in kept] == sorted({one.time_s for one in kept})
    for path in tmp_path.iterdir():
        assert len(read_file(path)) <= 40
    if written:
        whole = summarise(kept)
        assert whole.lasts["step"] == whole.peaks["memory"] == written - 1
        assert whole.means["load"] == pytest.approx((written // 2) / written)
        assert kept[-1].count == 1  # the newest are as they were


def test_after_many_years_the_oldest_goes(level):
    full = 2 * FOLD
    times = iter(range(10**6))
    for number in (4, 3, 2, 1, 0):  # each level is full, and older than the one before it
        lines = [render_sample(Sample(time_s=next(times))) for _ in range(full)]
        level(number).write_text("".join(f"{line}\n" for line in lines))
    SeriesWriter(level, lines=full).append(Sample(time_s=next(times)))
    oldest = [one.time_s for one in read_file(level(4))]
    # The older half of the oldest level is gone; the older half of the next is one sample now.
    assert oldest == [*map(float, range(FOLD, full)), full + FOLD - 1]
    assert [len(read_file(level(number))) for number in range(5)] == [FOLD + 1] * 5
    assert not level(5).exists()


def test_a_writer_goes_on_with_what_is_there(level):
    for number in range(100):
        SeriesWriter(level, lines=40).append(sample(number))
    assert sum(one.count for one in read_series(level)) == 100


def test_one_that_was_killed_while_it_summarised_has_written_nothing_twice(level):
    writer = SeriesWriter(level, lines=40)
    for number in range(40):
        writer.append(sample(number))
    before = level(0).read_text()
    writer.append(sample(40))
    assert level(1).exists()
    level(0).write_text(f"{before}{render_sample(sample(40))}\n")  # as if it were not shortened yet
    assert sum(one.count for one in read_series(level)) == 41


def test_a_torn_line_costs_one_sample(level):
    writer = SeriesWriter(level)
    writer.append(sample(1))
    with level(0).open("a") as file:
        file.write('{"time":2,"cou')
    assert len(read_series(level)) == 1
