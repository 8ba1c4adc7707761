import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.matching import generalise, matches, renew, shown_lines

LINES = st.lists(st.text("ab1 .", max_size=4), max_size=6)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ([], []),
        (["a"], ["a"]),
        (["a  "], ["a"]),
        (["a", ""], ["a"]),
        (["took … s"], ["took 0.3 s"]),
        (["… of …"], ["3 of 4"]),
        (["…"], []),
        (["…"], ["a", "b"]),
        (["a", "…", "z"], ["a", "z"]),
        (["a", "…", "z"], ["a", "z", "y", "z"]),
        (["…", "b", "…"], ["a", "b", "c", "d"]),
        (["a.b"], ["a.b"]),
        (["  a   b …  d"], ["  a    b c      d"]),
    ],
)
def test_is_what_was_expected(expected, printed):
    assert matches(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ([], ["a"]),
        (["a"], []),
        (["a"], ["b"]),
        (["a"], ["a", "b"]),
        (["a", "b"], ["a"]),
        (["a", "b"], ["b", "a"]),
        (["took … s"], ["took 0.3 ms"]),
        (["…x"], ["a", "x"]),
        (["a", "…", "z"], ["a", "b"]),
        (["a.b"], ["axb"]),
        ([" a"], ["a"]),
        (["  a"], ["   a"]),
        (["a  b"], ["a b"]),
    ],
)
def test_is_not_what_was_expected(expected, printed):
    assert not matches(expected, printed)


def test_colours_and_what_was_overwritten_are_not_shown():
    assert shown_lines("\x1b[1;31mred\x1b[0m  \r\n10 %\r100 %\n\x1b]0;title\x07x\n\n") == [
        "red",
        "100 %",
        "x",
    ]


def test_a_notice_of_a_slow_machine_is_not_part_of_a_page():
    assert shown_lines("waiting for Slurm to respond\nqueued as job 1\n") == ["queued as job 1"]


@given(LINES, LINES)
def test_what_was_renewed_matches(expected, printed):
    assert matches(renew(expected, printed), printed)


@given(LINES, LINES)
def test_what_two_runs_have_in_common_matches_both(one, other):
    common = generalise(one, other)
    assert matches(common, one)
    assert matches(common, other)


def test_lines_that_still_hold_are_kept():
    expected = ["up after … s", "old", "…", "end"]
    assert renew(expected, ["up after 2 s", "new", "a", "b", "end"]) == [
        "up after … s",
        "new",
        "…",
        "end",
    ]


def test_what_has_changed_is_not_hidden_by_any_number_of_lines():
    assert renew(["a", "…", "z"], ["a", "b", "y"]) == ["a", "…", "y"]


def test_times_are_never_the_same_twice():
    same = ["done in 0.5 s at 2026-11-16T12:30:01+00:00, 4 nodes, limit 02:00:00"]
    assert generalise(same, same) == ["done in … s at …, 4 nodes, limit 02:00:00"]


def test_what_differs_is_left_open():
    one = ["run train-0412ab: 2 ranks", "only here", "end"]
    other = ["run train-99ff01: 2 ranks", "end"]
    assert generalise(one, other) == ["run train-…: 2 ranks", "…", "end"]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("run-1a6-csv/x", "run-2b6-csv/x", "run-…-csv/x"),
        ("port 29501 is", "port 29617 is", "port … is"),
        ("id 12ab.", "id 99ab.", "id …."),
        ("n1    1.2.3.4    idle", "n1    1.2.3.44    idle", "n1    …    idle"),
        ("name     state", "name    state", "name     state"),
        ("12 of 40 rows", "13 of 40 rows", "… of 40 rows"),
    ],
)
def test_what_numbers_have_in_common_by_chance_is_not_kept(one, other, common):
    assert generalise([one], [other]) == [common]
