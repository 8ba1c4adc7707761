"""MNIST inside an image on two nodes, with each container runtime: a rank is killed, and the run
outlives its job.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from local.inside import Folder
from mnist_files import write_digits

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist" / "train.py"
SHAPE = ("--nodes=2", "--procs=1", "--nodelist=node[1-2]", "--restarts=3")
IMAGES, BATCH, EPOCHS = 1600, 8, 12
STEPS = EPOCHS * IMAGES // (2 * BATCH)
TRAINING = ("--data-dir=data", f"--epochs={EPOCHS}", f"--batch-size={BATCH}", "--crash-at=120")
ENOUGH = "enough"


def train(full, project, *image):
    """Train MNIST with a crash and a preemption; return the followed run's output."""
    project.environ |= {key: full.environ[key] for key in ("ECHELON_SANDBOX_DIR", "XDG_STATE_HOME")}
    project.environ["SLURM_CONF"] = str(full.box.layout.slurm_conf)
    shutil.copy(EXAMPLE, project.path)
    write_digits(project.path / "data", train=IMAGES)
    command = project.start("submit", "--follow", *SHAPE, *image, EXAMPLE.name, *TRAINING)
    output = project.path / "output"
    try:
        started_again = lambda: "restart 1 of 3" in output.read_text()  # noqa: E731
        assert wait_until(started_again, timeout_s=180), output.read_text()
        assert wait_until(lambda: has_saved(project.run, 200), timeout_s=90), output.read_text()
        script = f"#!/bin/bash\nuntil [ -e {project.path}/{ENOUGH} ]; do sleep 0.2; done\n"
        options = ("--partition=high", "--nodelist=node[1-2]", "--exclusive")
        high = full.sbatch(project.path, script, *options)
        full.await_job(high, "RUNNING")
        (project.path / ENOUGH).touch()
        assert command.wait(timeout=300) == 0, output.read_text()
    finally:
        command.kill()
        command.wait()
        full.calm()
    return output.read_text()


def has_saved(run, step):
    saved = [re.search(r"\d+", path.name) for path in run.glob("checkpoints/*")]
    return any(one and int(one[0]) >= step for one in saved)


def check(said, project):
    assert re.search(rf"test accuracy (8\d|9\d|100)\.\d\d% after {STEPS} steps on 2 ranks", said), (
        said
    )
    outcomes = [path.read_text() for path in sorted(project.run.glob("attempts/*/outcome.json"))]
    assert ["PREEMPTED" in one for one in outcomes] == [True, False]
    assert all(event["warm"] for event in project.events("rank"))


def test_podman(full, torch_image, tmp_path):
    folder = Folder(tmp_path)
    check(train(full, folder, f"--image={torch_image.path}", "--image-runtime=podman"), folder)
    assert wait_until(lambda: torch_image.containers() == [], timeout_s=20)


def test_apptainer_as_an_ordinary_user(full, apptainer_project, torch_sif):
    image = (f"--image={torch_sif}", "--image-runtime=apptainer")
    check(train(full, apptainer_project, *image), apptainer_project)
    assert apptainer_project.run.stat().st_uid != os.getuid()
