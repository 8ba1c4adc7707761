"""Tables, for people and for pipes."""

import io
import sys

import pytest

from echelon.cli import console

LONG = "a-run-with-a-name-as-long-as-they-get-1234-ab2c"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_one_copies_from_a_table_is_never_cut(monkeypatch, terminal):
    output = io.StringIO()
    monkeypatch.setattr(output, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv("COLUMNS", "80")
    console.print_table(["run", "state"], [[LONG, "x" * 100]])
    assert LONG in output.getvalue()
    assert terminal or "x" * 100 in output.getvalue()
