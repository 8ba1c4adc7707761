"""Directives that sbatch rejects or accepts; tests/slurm asks the real one about the same list."""

from pathlib import Path

import pytest

from echelon.lint.edits import apply_edits
from echelon.lint.linting import lint
from unit.lint.fakes import SlurmOf, TextFiles, codes

LIST = Path(__file__).parents[2] / "golden/lint/directives.txt"


def directives():
    """The listed directives, and whether sbatch accepts each."""
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    return [(line.partition(" ")[2], line.startswith("accepted ")) for line in lines]


def script(directive, body="srun hostname\n"):
    return f"#!/bin/bash\n#SBATCH {directive}\n{body}"


@pytest.mark.parametrize(("directive", "accepted"), directives())
def test_a_directive_is_an_error_if_sbatch_rejects_it(directive, accepted):
    found = lint(script(directive), path="job.sh", files=TextFiles({}), programs=SlurmOf())
    errors = [finding for finding in found if finding.severity == "error"]
    assert (errors == []) == accepted, found
    if not accepted:
        assert len(errors) == 1
        assert "rejects" in errors[0].what or "mutually exclusive" in errors[0].what


def test_a_directive_that_sbatch_may_accept_is_no_error():
    assert ("E104", "warning") in codes("", script("--array=1-N"))  # perhaps a form
    for directive in ("--job-name =x", "-o=x.log", "--mail-type=END,FAILED", "--gpus=gpu:2"):
        assert "error" not in dict(map(reversed, codes("", script(directive))))


@pytest.mark.parametrize(
    ("directive", "fixed"),
    [
        ("-p=low", "-p low"),
        ("--nodes =2", "--nodes=2"),
        ("--mem  =4G  # of node 1", "--mem=4G  # of node 1"),
        ("--time==1:00", "--time==1:00"),  # not clear
        ("-p=low -N=2", "-p low -N 2"),
    ],
)
def test_the_equals_sign_is_removed(directive, fixed):
    text = script(directive)
    found = lint(text, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    edits = [edit for finding in found if finding.code == "E104" for edit in finding.edits]
    assert apply_edits(text, edits) == script(fixed)
