"""Runs inside an image with a real apptainer, as an ordinary user."""

import json
import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

import echelon
from apptainer import ROOT, USER, is_left
from echelon.core.waiting import wait_until
from local.inside import INSIDE

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_ranks_are_inside_and_a_restart_is_a_fork(apptainer_project, apptainer_place, torch_sif):
    project = apptainer_project
    (project.path / "inside.py").write_text(INSIDE)
    done = project("run", "--procs=2", "--restarts=1", "--image", torch_sif, "inside.py")
    assert done.returncode == 0, done.stderr
    # The test's PYTHONPATH comes first. Of the host's folders, apptainer mounts /tmp.
    host = Path(echelon.__file__)
    own = "/opt/echelon-library/echelon/__init__.py"
    library = host if host.is_relative_to(tempfile.gettempdir()) else own
    assert f"library {library}" in done.stdout
    seen = [
        json.loads((project.path / f"seen-{turn}-{rank}").read_text())
        for turn in (0, 1)
        for rank in (0, 1)
    ]
    for one in seen:
        assert one["python"] == "/usr/local/bin/python3"
        assert (one["sum"], one["image"], one["venv"]) == (2, "yes", None)
        assert (one["uid"], one["cwd"]) == (pwd.getpwnam(USER).pw_uid, str(project.path))
    assert len({one["parent"] for one in seen}) == 1
    assert [event["warm"] for event in project.events("rank")] == [True] * 4
    assert wait_until(lambda: not is_left(apptainer_place), timeout_s=20)


def test_a_stop_is_at_one_step_and_leaves_no_process(apptainer_project, apptainer_place, torch_sif):
    project = apptainer_project
    script = shutil.copy(ROOT / "tests" / "slurm" / "survivor.py", project.path)
    command = project.start("run", "--procs=2", "--image", torch_sif, script, "100000", "0.02")
    files = [project.path / f"consumed-{rank}" for rank in range(2)]
    going = lambda: all(path.exists() for path in files)  # noqa: E731
    assert wait_until(going, timeout_s=90), (project.path / "output").read_text()
    assert project("stop", "last").returncode == 0
    command.wait(timeout=60)
    (stopped,) = project.events("stopped")
    steps = [json.loads(path.read_text().splitlines()[-1])[2] for path in files]
    assert steps == [stopped["step"]] * 2
    assert wait_until(lambda: not is_left(apptainer_place), timeout_s=20)


def test_an_archive_is_converted_once(apptainer_project, apptainer_place, bare_image):
    project = apptainer_project
    archive = shutil.copy(bare_image.path, apptainer_place)
    (project.path / "plain.py").write_text("import os; print('from', os.environ['FROM_IMAGE'])\n")
    for _ in range(2):
        done = project("run", "--image", archive, "plain.py", timeout_s=300)
        assert (done.returncode, "from yes" in done.stdout) == (0, True), done.stderr
        (row,) = json.loads(project("image", "ls", "--json").stdout)
        assert row["path"].endswith(".sif")


def test_a_staged_image_is_opened_from_the_node_s_own_disk(apptainer_project, torch_sif):
    project = apptainer_project
    (project.path / "where.py").write_text("import sys; print('ran with', sys.executable)\n")
    options = ["--nodes=2", "--procs=1", "--stage", f"--stage-dir={project.path}/stages/%N"]
    for found, copied in ((0, 2 * torch_sif.stat().st_size), (2, 0)):
        done = project("run", "--image", torch_sif, *options, "where.py", timeout_s=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("ran with /usr/local/bin/python3") == 2
        (event,) = project.events("staged")
        assert (event["nodes"], event["found"], event["copied"]) == (2, found, copied)
        shutil.rmtree(project.run)
