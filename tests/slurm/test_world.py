"""`detect` in the places where Slurm's variables mislead."""

import json
import re
import shlex
import sys

import pytest

from requirements import require

SHOW = (
    "import json, os; from dataclasses import asdict; from echelon.world import detect; "
    "print(json.dumps(asdict(detect(os.environ))))"
)
PYTHON = [sys.executable, "-c", SHOW]


def worlds(text):
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda world: world["rank"])


def test_tasks_of_a_step_are_ranks(full):
    seen = worlds(full.exec("srun", "--nodes=3", "--ntasks=4", "--gpus-per-task=1", *PYTHON))
    assert [world["rank"] for world in seen] == [0, 1, 2, 3]
    assert {world["world_size"] for world in seen} == {4}
    assert [world["node_rank"] for world in seen] == [0, 0, 1, 2]
    assert [world["local_world_size"] for world in seen] == [2, 2, 1, 1]
    assert {world["gpu"] for world in seen} == {0}  # each task sees one


def test_a_step_smaller_than_its_job_is_its_own_world(full, tmp_path):
    step = shlex.join(["srun", "--nodes=1", "--ntasks=2", *PYTHON])
    job = full.sbatch(tmp_path, f"#!/bin/bash\n{step}\n", "--nodes=2", "--ntasks-per-node=2")
    full.await_job(job, "COMPLETED")
    seen = worlds((tmp_path / "out").read_text())
    assert [(world["rank"], world["world_size"], world["nodes"]) for world in seen] == [
        (0, 2, 1),
        (1, 2, 1),
    ]


def test_a_batch_script_is_one_process_whatever_the_job_asked_for(full, tmp_path):
    script = f"#!/bin/bash\n{shlex.join(PYTHON)}\n"
    job = full.sbatch(tmp_path, script, "--nodes=2", "--ntasks-per-node=2")
    full.await_job(job, "COMPLETED")
    (world,) = worlds((tmp_path / "out").read_text())
    assert (world["world_size"], world["source"]) == (1, "none")


@pytest.mark.parametrize("interactive", ["salloc", "srun --pty"])
def test_an_interactive_shell_is_one_process(full, interactive):
    require("script")
    inner = shlex.join(PYTHON)
    command = f"{interactive} --nodes=1 --ntasks=1 --gres=gpu:2 {inner}"
    # --pty wants a terminal, which script(1) makes.
    shown = full.exec("script", "--quiet", "--return", "--command", command, "/dev/null")
    found = re.search(r"\{.*\}", shown)
    assert found, shown
    world = json.loads(found[0])
    assert (world["world_size"], world["source"]) == (1, "none")
