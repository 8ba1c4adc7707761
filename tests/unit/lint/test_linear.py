"""Long lines: lint takes time in proportion to their length, and no stack."""

import sys

import pytest

from echelon.clusters.slurm.options import parse_sbatch, split_directive
from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint

SHAPES = {
    "substitutions": lambda n: "echo " + "$(a) " * n,
    "calls of a function": lambda n: "f() { a; }\n" + "x=$(f);" * n,
    "statements": lambda n: "a;" * n,
    "assignments": lambda n: "A=1;a;" * n,
    "programs": lambda n: "python a.py;" * n,
    "exports": lambda n: "export " + "A=1 " * n,
    "options": lambda n: "#SBATCH " + "-N1 " * n,
    "switches": lambda n: "#SBATCH -" + "HQ" * n,
}


def count_steps(text):
    """Count what Python carries out, instruction by instruction: no clock is asked."""
    steps = 0

    def trace(frame, _kind, _value):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        lint(text, path="/nowhere/job.sh", files=DiskFiles())
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_text_takes_twice_the_steps(shape):
    sizes = (50, 50, 100, 200)  # the first fills caches
    _, one, two, four = (count_steps(f"#!/bin/bash\n{SHAPES[shape](n)}\n") for n in sizes)
    # In proportion it is 2 exactly; a list that is copied for each command makes 2.15 of it.
    assert four - two < 2.1 * (two - one)


@pytest.mark.timeout(300)
def test_a_value_of_a_megabyte_is_read_in_one_pass():
    """Copying the word for each character would take most of an hour."""
    value = "a" * (1 << 20)
    assert split_directive(f" --comment={value}", 1) == [f"--comment={value}"]
    assert parse_sbatch(["-" + "HQ" * (1 << 15)]) == {"hold": "", "quiet": ""}
    lint(f"#!/bin/bash\n#SBATCH --comment={value}\n", path="/nowhere/job.sh", files=DiskFiles())


@pytest.mark.parametrize("word", ["srun", "env", "nohup", "mpirun", "time"])
def test_a_thousand_starters_in_a_row_are_no_fault_of_ours(word):
    text = f"#!/bin/bash\n{f'{word} ' * 3000}python train.py\n"
    lint(text, path="/nowhere/job.sh", files=DiskFiles())
