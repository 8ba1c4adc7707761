"""Damaged and hostile files: reading ends soon, in bounded memory, with an error of its own.

A finding names its case: `SEED=n`. To repeat that one: `DAMAGE_SEED=n pytest` with this file.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import damage_cases
from echelon.client.code.snapshot import take_snapshot
from echelon.core.atomic_file import write_atomic
from echelon.core.shell import LocalShell
from echelon.run.listing import list_runs
from echelon.run.node_record import NodeEvent, append_entries, record_path
from echelon.run.request import read_spec, render_spec
from echelon.spec.job_spec import JobSpec
from echelon.train.checkpoint import Checkpointer
from prepared import prepare_run
from recorded_run import record_run

CONFIG = '[clusters.alps]\npartition = "gpu"\naccount = "us"\n'
PROJECT = """\
cluster = "alps"
nodes = 2
time = "1h"
env = { A = "1" }

[slurm]
batch = { hold = true }
"""
JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=4
#SBATCH --time=01:00:00
srun torchrun --nnodes=2 --nproc-per-node=4 train.py
"""


@pytest.fixture(scope="module")
def place():
    """A home with two runs, one of them with checkpoints, a project and a cluster's bad node."""
    memory = "/dev/shm"  # noqa: S108  commands that write would wait for a disk
    folder = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    place = Path(folder).resolve()
    try:
        _furnish(place)
        yield place
    finally:
        shutil.rmtree(place)


def _furnish(place):
    (place / "train.py").write_text("import torch\n")
    record_run(place / "runs", damage_cases.WHOLE)
    run = record_run(place / "runs", damage_cases.DAMAGED)
    _add_code(place)
    # Script and launcher as they are submitted: `resume` compares one with the other.
    prepared = prepare_run(JobSpec(script="train.py"), place / "others", place)
    script = prepared.script.read_text().replace(str(prepared.path), str(run.path))
    run.script.write_text(script)
    run.launcher.rmdir()
    prepared.launcher.rename(run.launcher)
    checkpointer = Checkpointer(run.checkpoints, rank=0, world_size=1, best="loss")
    for step in (1, 2):
        state = {"model": {"weight": torch.full((4,), float(step))}, "step": step}
        checkpointer.save(state, step=step, own={"seed": step}, metrics={"loss": 1.0}, wait=True)
    path = record_path("cluster", {"HOME": str(place)})
    append_entries(path, [NodeEvent(kind="excluded", node="n1", run="r", reason="bang")])
    state = place / ".local" / "state" / "echelon"
    (state / "submitted").write_text(f"{'0' * 64}\n")
    (place / ".config" / "echelon").mkdir(parents=True)
    (place / ".config" / "echelon" / "config.toml").write_text(CONFIG)
    (place / "echelon.toml").write_text(PROJECT)
    (place / "job.sh").write_text(JOB)


def _add_code(place):
    """Give all runs a copy of the project."""
    for run in list_runs(place / "runs"):
        spec = read_spec(run)
        code = take_snapshot(run, spec, place, LocalShell())
        write_atomic(run.spec, render_spec(spec, code))
        for path in (run.code, *run.code.rglob("*")):
            path.chmod(0o700)


def run_cases(place, seed, count, within_s):
    """Run cases in a process of their own; return how many there were, and what is wrong."""
    argv = [sys.executable, damage_cases.__file__, str(place), *map(str, (seed, count, within_s))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path.cwd())
    *_, last = ["", *done.stdout.splitlines()]
    assert done.returncode == 0, f"SEED={last}: {done.stderr[-3000:]}"
    count, kinds, wrong = json.loads(last)
    sys.stdout.write(f"{count} cases: {kinds}\n")
    return count, wrong


def test_any_damage_to_a_run_is_an_error_of_its_own_at_most(place):
    only = os.environ.get("DAMAGE_SEED")
    seed, count = (int(only), 1) if only else (0, 250)
    done, wrong = run_cases(place, seed=seed, count=count, within_s=10)
    assert not wrong, "\n\n".join(wrong)
    assert done


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_thousand_damages(place):
    done, wrong = run_cases(place, seed=100_000, count=10_000, within_s=3000)
    assert not wrong, "\n\n".join(wrong)
    assert done == 10_000
