"""The site reads as the repository does."""

import runpy

import pytest

from docs.catalogue import ROOT


@pytest.fixture(scope="module")
def site():
    return runpy.run_path(str(ROOT / "tools" / "sitepages.py"))


@pytest.mark.parametrize(
    ("origin", "link", "place"),
    [
        ("docs/a.md", "b.md", "b.md"),
        ("docs/start/a.md", "../b.md", "b.md"),
        ("docs/a.md", "../README.md", "repository/README.md"),
        ("docs/start/a.md", "../../examples", "repository/examples/README.md"),
        ("docs/a.md", "../benchmarks/results", "repository/benchmarks/results/index.md"),
        ("README.md", "docs/images/x.png", "images/x.png"),
        ("examples/README.md", "mnist/train.py", "repository/examples/mnist/train.py"),
    ],
)
def test_where_a_link_leads(site, origin, link, place):
    assert site["place"](site["resolve"](origin, link)) == place


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        ("So:\n- a\n- b", "So:\n\n- a\n- b"),
        ("So:\n1. a\n2. b", "So:\n\n1. a\n2. b"),
        ("So:\n\n- a\n  more\n- b", "So:\n\n- a\n  more\n- b"),
        ("So:\n| a |\n| --- |", "So:\n\n| a |\n| --- |"),
        ("```\nx\n```\n| a |", "```\nx\n```\n\n| a |"),
        ("```\nSo:\n- a\n```", "```\nSo:\n- a\n```"),
        ("a\n-5 is less", "a\n-5 is less"),
    ],
)
def test_lists_and_tables_stand_apart(site, text, spaced):
    assert site["space"](text) == spaced


def test_comments_are_not_shown_but_in_code(site):
    text = "<!-- needs: slurm -->\n# A\n```html\n<!-- b -->\n```\n<!-- exit: 1 -->\nc <!-- d -->"
    assert site["without_comments"](text) == "# A\n```html\n<!-- b -->\n```\nc <!-- d -->"
