"""Tables in terminals and in pipes."""

import io
import sys

import pytest

from echelon.cli import console

LONG = "a-run-with-a-name-as-long-as-they-get-1234-ab2c"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_first_column_of_a_table_is_never_cut(monkeypatch, terminal):
    output = io.StringIO()
    monkeypatch.setattr(output, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("COLUMNS", "80")
    console.print_table(["run", "state"], [[LONG, "x" * 100]])
    assert LONG in output.getvalue()
    assert terminal or "x" * 100 in output.getvalue()


@pytest.mark.parametrize("width", [0, 60])
def test_table_columns_are_aligned_with_wide_characters(width):
    rows = [["run", "state"], ["日本", "x"], ["abcdef", "y"]]
    lines = console.render_table(rows, width=width, header=True)
    if not width:
        assert lines == ["run     state", "日本    x", "abcdef  y"]
    else:
        assert lines[0] == lines[-1] == ""
        assert lines[2:-1] == [" ──────────────", " 日本     x", " abcdef   y"]


def test_the_widest_table_columns_are_cut_in_a_narrow_terminal():
    lines = console.render_table([["a" * 10, "b" * 40, "c" * 60, "d"]], width=50, header=False)
    assert all(len(line) < 50 for line in lines)
    first, second, third, fourth = lines[1].split()
    assert (first, fourth) == ("a" * 10, "d")
    assert second.endswith("b…")
    assert abs(len(second) - len(third)) <= 1
