"""Every page of the documentation does what it says. `tools/docs.py` is for who writes one."""

import ast
import tomllib

import pytest
import typer.main

from docs.calls import find_fault, mentioned
from docs.catalogue import ROOT, page_names, read_page
from docs.page import PageError, Snippet, WrittenFile, parse_page
from docs.running import run_page
from echelon.cli.app import app

PAGE_S, FULL_S = 900, 1800
"""For a page of `make test`, and of `make test-all`: its commands have limits of their own."""


def runnable():
    for name in page_names():
        try:
            page = read_page(name)
        except PageError:
            continue  # the test below tells
        if page.runs:
            yield pytest.param(name, marks=marks_of(page))


def marks_of(page):
    long = bool(page.needs & {"full", "peers"})
    marks = [pytest.mark.timeout(FULL_S if long else PAGE_S)]
    marks += [pytest.mark.full] if long else []
    marks += [pytest.mark.alone] if "alone" in page.needs else []
    marks += [pytest.mark.slurm] if page.needs & {"sandbox", "slurm"} else []
    return marks


@pytest.mark.parametrize(
    ("needs", "marks"),
    [
        ("root", set()),
        ("sandbox", {"slurm"}),
        ("slurm, root", {"slurm"}),
        ("full", {"full"}),
        ("sandbox, full", {"slurm", "full"}),
        ("peers", {"full"}),
        ("alone", {"alone"}),
    ],
)
def test_what_takes_long_or_is_not_everywhere_is_marked(needs, marks):
    page = parse_page("page.md", f"<!-- needs: {needs} -->")
    assert {mark.name for mark in marks_of(page)} - {"timeout"} == marks


@pytest.mark.parametrize("name", page_names())
def test_can_be_read_and_its_code_parsed(name):
    for step in read_page(name).steps:
        if isinstance(step, WrittenFile):
            check_syntax(step.name.rpartition(".")[2], step.content)
        elif isinstance(step, Snippet):
            check_syntax({"python": "py"}.get(step.language, step.language), step.content)
            if step.excerpt_of:
                check_excerpt(step)


@pytest.mark.parametrize("name", page_names())
def test_calls_that_it_only_mentions_are_possible(name):
    tree = typer.main.get_command(app)
    faults = {f"echelon {call}": find_fault(call, tree) for call in mentioned(read_page(name))}
    assert {call: fault for call, fault in faults.items() if fault} == {}


def check_syntax(kind, content):
    if kind == "py":
        ast.parse(content)
    elif kind == "toml":
        tomllib.loads(content)


def check_excerpt(step):
    """Lines of the file, in its order; some between them may be missing, and indents differ."""
    lines = (line.strip() for line in (ROOT / step.excerpt_of).read_text().splitlines())
    for wanted in step.content.splitlines():
        found = not wanted.strip() or any(line == wanted.strip() for line in lines)
        assert found, f"{step.excerpt_of} has no such line, or not there: {wanted}"


@pytest.mark.parametrize("name", list(runnable()))
def test_does_what_it_says(name):
    try:
        run_page(read_page(name))
    except PageError as error:
        pytest.fail(f"{error}\n\nhint: python tools/docs.py update {name}", pytrace=False)
