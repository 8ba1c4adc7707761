"""What others write cannot steer the terminal of whoever reads it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.terminal_escape import in_one_line, settled, visible
from echelon.launch.doctor.report import render_findings as render_doctors
from echelon.launch.doctor.results import Finding as DoctorsFinding
from echelon.lint.report import render_findings
from echelon.lint.rule import Finding, Severity

EVIL = "1\x1b]0;title\x07\r\n"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FRAGMENTS = ["\x1b", "[", "]", "31m", "0;", "2J", "\r", "\n", "\t", "\x9b", "\x7f", "\u202e", "é"]


def without_colours(text):
    return re.sub(r"\x1b\[[0-9;:]*m", "", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("16Go é … 漢字 🙂", "16Go é … 漢字 🙂"),
        ("two\nlines\twith a tab", "two\nlines\twith a tab"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[1;38;5;9mbold", "\x1b[1;38;5;9mbold\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J\x1b[1;1H", r"\x1b[2J\x1b[1;1H"),
        ("\x1bPq\x1b\\", r"\x1bPq\x1b" + "\\"),
        ("\x9b2J", r"\x9b2J"),
        ("a\rb\x08c", r"a\rb\x08c"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("\udcff", r"\udcff"),
    ],
)
def test_colours_and_text_pass_and_the_rest_is_escaped(text, shown):
    assert visible(text) == shown


@given(st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS)).map("".join)))
def test_nothing_that_steers_a_terminal_is_left(text):
    assert not STEERING.search(without_colours(visible(text)))
    assert in_one_line(text).isprintable()


def test_a_text_in_one_line_has_neither_newlines_nor_colours():
    assert in_one_line("16Go é …") == "16Go é …"
    assert in_one_line(EVIL) == r"1\x1b]0;title\x07\r\n"
    assert in_one_line("\x1b[31mred") == r"\x1b[31mred"


def test_a_progress_bar_is_shown_as_it_was_last():
    assert settled("  0%|   |\r 50%|█  |\r100%|███|") == "… 100%|███|"
    assert settled("\rdone\r") == "done"
    assert settled("plain") == "plain"


def test_neither_command_passes_it_on():
    place = {"path": EVIL, "line": 1, "column": 1, "end_line": 1, "end_column": 2}
    lint = Finding(code="E104", severity=Severity.ERROR, what=EVIL, fix=EVIL, **place)
    doctors = DoctorsFinding(severity="error", node="n1", check="reach", message=EVIL, fix="-")
    for text in (render_findings([lint], 1), render_doctors([doctors])):
        assert all(one.isprintable() for one in text.replace("\n", ""))
    assert len(render_findings([lint], 1).splitlines()) == 3
