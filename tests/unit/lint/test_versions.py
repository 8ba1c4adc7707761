"""Rules that depend on the version of Slurm ask for it."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import SlurmOf, TextFiles

JOB = """\
#!/bin/bash
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
srun python prepare.py
srun python train.py
"""


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        (None, [4]),
        ("21.08.8", []),
        ("22.05.8", [4]),
        ("23.02.7", [4]),
        ("23.11.1", []),
        ("24.11.5-1", []),
    ],
)
def test_lost_cpus_are_reported_once_and_only_for_versions_that_lose_them(version, lines):
    findings = lint(JOB, path="job.sh", files=TextFiles({}), programs=SlurmOf(version))
    assert [f.line for f in findings if f.code == "E401"] == lines
