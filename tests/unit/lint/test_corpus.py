"""Whole scripts, as people write them: the good ones give nothing, the bad ones what they say.

In tests/golden/lint/bad a comment `# expect: CODE …` is about its own line, `# expect on the next
line: CODE …` about the next, and `# expect CODE at line N of FILE` about any.
"""

import re
from pathlib import Path

import pytest

from echelon.clusters.slurm.styles import render_script
from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint
from echelon.spec.job_spec import STYLES
from echelon.spec.merging import Layer, merge
from unit.lint.fakes import SlurmOf, by_default

GOLDEN = Path(__file__).parents[2] / "golden"
GOOD = sorted((GOLDEN / "lint/good").glob("*.*"))
WRAPPERS = ("cesga_task.sh", "own_host_node.sh")
"""Started by another; alone they say nothing."""
BAD = [path for path in sorted((GOLDEN / "lint/bad").glob("*.sh")) if path.name not in WRAPPERS]
BAD_PYTHON = [GOLDEN / "lint/bad" / name for name in ("slip.py",)]
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.py"))


class Snippets(DiskFiles):
    """Files whose Python scripts are left out, and without modes."""

    def repository(self, path):  # noqa: ARG002
        return None

    def is_executable(self, path):  # noqa: ARG002
        return True


def lint_file(path):
    found = lint(path.read_text(), path=str(path), files=Snippets(), programs=SlurmOf())
    return by_default(found)


def expected(path):
    """What a file says of itself, as (file, line, code)."""
    found = set()
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if match := re.search(r"# expect: ([E0-9 ]+)", line):
            found |= {(path.name, number, code) for code in match[1].split()}
        elif match := re.search(r"# expect on the next line: ([E0-9 ]+)", line):
            found |= {(path.name, number + 1, code) for code in match[1].split()}
        elif match := re.search(r"# expect (E\d+) at line (\d+) of (\S+)", line):
            found.add((match[3], int(match[2]), match[1]))
    return found


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_a_good_script_gives_nothing(path):
    assert lint_file(path) == []


@pytest.mark.parametrize("path", [*BAD, *BAD_PYTHON], ids=lambda path: path.name)
def test_a_bad_script_gives_what_it_says_and_nothing_else(path):
    findings = lint_file(path)
    files = {path, *(Path(finding.path) for finding in findings)}
    files |= set(path.parent.glob(f"{path.stem}_*"))
    wanted = set().union(*map(expected, files))
    assert wanted, "it says nothing"
    assert {(Path(f.path).name, n, f.code) for f in findings for n in f.lines} == wanted


def test_there_are_enough_of_them():
    assert len(list((GOLDEN / "lint/good").glob("*.sh"))) >= 20
    assert len(BAD) >= 20


EXAMPLE = {"script": "train.py", "nodes": 2, "gpus": 4, "cpus_per_task": 8, "time": "2h"}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "more", [{}, {"nodes": 1}, {"gpus": 0, "procs": 2}, {"gpu_option": "gpus-per-task"}]
)
def test_our_own_scripts_are_clean(style, more):
    values = {**EXAMPLE, **more, "style": style}
    text = render_script(merge([Layer(source="test", values=values)]).spec)
    assert lint(text, path="job.sh", files=Snippets(), programs=SlurmOf()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_our_examples_are_clean(path):
    assert lint_file(path) == []
