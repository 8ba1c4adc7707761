"""Fixes that lint applies itself: exact, idempotent, and none where the script is not clear."""

import ast
from pathlib import Path

import pytest

from echelon.core.shell import LocalShell
from echelon.lint.edits import Edit, apply_edits, insert_line
from echelon.lint.files import DiskFiles
from echelon.lint.linting import RULES, lint
from echelon.lint.rules.syntax import ask_bash
from unit.lint.fakes import SlurmOf, TextFiles, by_default
from unit.lint.test_rules import example_files

INHERIT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
GOLDEN = Path(__file__).parents[2] / "golden/lint"
FIXED = {"E101", "E104", "E209", "E401", "E408"}
"""The rules whose example has a certain fix."""


def fix(text, path, files):
    for _ in range(10):
        found = lint(text, path=path, files=files, programs=SlurmOf("22.05"))
        now = apply_edits(text, [e for f in found if f.path == path for e in f.edits])
        if now == text:
            return text
        text = now
    raise AssertionError("the edits do not come to an end")


def is_valid(text, path):
    if path.endswith(".py"):
        ast.parse(text)
        return True
    return ask_bash(text, LocalShell()) is None


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_a_fixed_example_is_clean(rule):
    files = example_files(rule.bad.replace("    # <- here", ""))
    path = next(iter(files))
    fixed = fix(files[path], path, TextFiles(files))
    assert (fixed != files[path]) == (rule.code in FIXED)
    if rule.code in FIXED:
        now = lint(fixed, path=path, files=TextFiles(files), programs=SlurmOf())
        assert by_default(now) == []
        assert is_valid(fixed, path)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/*.sh")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_a_fixed_script_has_no_new_problem(path):
    text = path.read_bytes().decode()
    fixed = fix(text, str(path), DiskFiles())
    if "good" in path.parts:
        assert fixed == text
    if fixed == text:
        return
    assert is_valid(fixed, str(path)) >= is_valid(text, str(path))
    before, after = (
        [f.code for f in lint(t, path=str(path), files=DiskFiles(), programs=SlurmOf("22.05"))]
        for t in (text, fixed)
    )
    assert len(after) < len(before)
    assert set(after) <= set(before)


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("\n\n#!/bin/bash\n#SBATCH -N 1\n", "#!/bin/bash\n#SBATCH -N 1\n"),
        ("# mine\n#!/bin/bash\n#SBATCH -N 1\n", "# mine\n#!/bin/bash\n#SBATCH -N 1\n"),
        ("#!/bin/bash\n#SBATCH --mem 8Go\n", "#!/bin/bash\n#SBATCH --mem 8G\n"),
        ("#!/bin/bash\n#SBATCH --mem=lots\n", "#!/bin/bash\n#SBATCH --mem=lots\n"),
        (
            "#!/bin/bash\n#SBATCH -N 1\nexport A = 'x y' # b\n",
            "#!/bin/bash\n#SBATCH -N 1\nexport A='x y' # b\n",
        ),
        ("#!/bin/bash\n#SBATCH -N 1\nA = b c\n", "#!/bin/bash\n#SBATCH -N 1\nA = b c\n"),
        (
            "#!/bin/bash\n#SBATCH -c 8\n##SBATCH -p a\nsrun python a.py\n",
            f"#!/bin/bash\n#SBATCH -c 8\n##SBATCH -p a\n{INHERIT}\nsrun python a.py\n",
        ),
    ],
)
def test_an_edit_changes_no_more_than_it_says(text, fixed):
    assert fix(text, "job.sh", TextFiles({})) == fixed


def test_a_script_that_is_not_clear_stays_as_it_is():
    text = "#!/bin/bash\n#SBATCH --mem=8Go\nOMP_NUM_THREADS=2\nif true; then\npython a.py\n"
    fixed = fix(text, "job.sh", TextFiles({}))
    assert fixed == text.replace("8Go", "8G")  # a directive is a line of its own


def test_a_mark_and_line_ends_go_before_the_rest():
    text = "\ufeff#!/bin/bash\r\n#SBATCH --mem=8Go\r\npython a.py\r\n"
    fixed = fix(text, "job.sh", TextFiles({}))
    assert fixed == "#!/bin/bash\n#SBATCH --mem=8G\npython a.py\n"


def test_of_two_edits_that_overlap_the_first_is_applied():
    first = Edit(line=1, column=1, end_line=1, end_column=4, text="x")
    second = Edit(line=1, column=3, end_line=2, end_column=2, text="y")
    assert apply_edits("abcde\nf", [second, first]) == "xde\nf"
    assert apply_edits("abc\nb", [insert_line(2, "new"), first]) == "x\nnew\nb"
