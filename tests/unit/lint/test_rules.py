"""Every rule's bad script gives that finding and no other; its good one gives none."""

import pytest

from echelon.lint.linting import RULES, lint
from unit.lint.fakes import SlurmOf, TextFiles, by_default

BY_CODE = pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
MARK = "# <- here"


def example_files(example: str) -> dict[str, str]:
    """Return the files of an example by name; the first one is the file to lint."""
    files: dict[str, str] = {}
    name, lines = "job.sh", list[str]()
    for line in example.splitlines(keepends=True):
        if line.startswith("--- "):
            if lines:
                files[name] = "".join(lines)
            name, lines = line[4:].strip(), []
        else:
            lines.append(line)
    return {**files, name: "".join(lines)}


def lint_example(example, rule):
    """Lint an example; return its findings, without those that are not reported by default."""
    files = example_files(example)
    first = next(iter(files))
    beside = TextFiles(files, repository=len(files) > 1)
    found = lint(files[first], path=first, files=beside, programs=SlurmOf("22.05.8"))
    reported = by_default(found)
    return [one for one in found if one in reported or one.code == rule.code], files


@BY_CODE
def test_the_bad_script_gives_this_finding_and_no_other(rule):
    findings, files = lint_example(rule.bad, rule)
    assert [finding.code for finding in findings] == [rule.code], findings
    finding = findings[0]
    marked = [
        (name, number)
        for name, text in files.items()
        for number, line in enumerate(text.split("\n"), 1)
        if MARK in line
    ]
    if marked:  # a line that ends in a \\ cannot hold a comment
        assert (finding.path, finding.line) == marked[0]
    assert finding.what.endswith((".", "…"))
    assert finding.fix


@BY_CODE
def test_the_good_script_gives_none(rule):
    assert lint_example(rule.good, rule)[0] == []


@BY_CODE
def test_a_rule_says_why(rule):
    assert rule.title
    assert rule.why.endswith(".")
    assert rule.bad != rule.good


def test_codes_are_unique_and_in_order():
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
