"""Damaged and hostile files: reading ends soon, in bounded memory, with an error of its own.

A finding names its case: `SEED=n`. To repeat it alone, run that one case with `run_cases`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import damage_cases
from echelon.run.node_record import Entry, append_entries, record_path
from echelon.train.checkpoint import Checkpointer
from recorded_run import record_run


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A home with two runs, one of them with checkpoints, and a cluster with a bad node."""
    place = tmp_path_factory.mktemp("damage")
    record_run(place / "runs", "good-abcd")
    run = record_run(place / "runs", "train-abcd")
    checkpointer = Checkpointer(run.checkpoints, rank=0, world_size=1)
    for step in (1, 2):
        state = {"model": {"weight": torch.full((4,), float(step))}, "step": step}
        checkpointer.save(state, step=step, own={"seed": step}, metrics={"loss": 1.0}, wait=True)
    path = record_path("cluster", {"HOME": str(place)})
    append_entries(path, [Entry(kind="excluded", node="n1", run="r", reason="bang")])
    return place


def run_cases(place, seed, count, within_s):
    """Run cases in a process of their own; return how many there were, and what is wrong."""
    argv = [sys.executable, damage_cases.__file__, str(place), *map(str, (seed, count, within_s))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_any_damage_to_a_run_is_an_error_of_its_own_at_most(place):
    done, wrong = run_cases(place, seed=0, count=1500, within_s=30)
    sys.stdout.write(f"{done} cases\n")
    assert not wrong, "\n\n".join(wrong)
    assert done


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_thousand_damages(place):
    done, wrong = run_cases(place, seed=100_000, count=10_000, within_s=3000)
    assert not wrong, "\n\n".join(wrong)
    assert done == 10_000
