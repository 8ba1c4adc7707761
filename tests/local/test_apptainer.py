"""Runs inside an image with a real apptainer, as an ordinary user; it is Debian's newest."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

import echelon
from echelon.core.waiting import wait_until
from local.inside import INSIDE, Folder
from procfs import all_pids, cmdline
from requirements import do_without, require, require_root

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
USER = "nobody"
PYTHON = "/usr/bin/python3"
"""Another user cannot read the Python of these tests."""
FAST = "--mksquashfs-args=-noI -noD -noF -noX"
"""Without compression, which would take minutes."""


@pytest.fixture(scope="module")
def place():
    """A folder that an ordinary user can read."""
    require("apt-get", "patchelf", "mksquashfs")
    require_root("to become an ordinary user")
    if not os.access(PYTHON, os.X_OK):
        do_without(f"needs {PYTHON}")
    folder = Path(tempfile.mkdtemp(prefix="echelon-", dir="/var/tmp"))
    folder.chmod(0o755)
    fuse = Path("/dev/fuse")
    mode = stat.S_IMODE(fuse.stat().st_mode)
    fuse.chmod(0o666)  # as udev has it
    yield folder
    fuse.chmod(mode)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def apptainer(place):
    """The path of its programs."""
    subprocess.run([ROOT / "tools" / "apptainer.sh", place / "root"], check=True, timeout=300)
    return place / "root" / "usr" / "bin"


@pytest.fixture
def project(place, apptainer):
    account = pwd.getpwnam(USER)
    path = Path(tempfile.mkdtemp(prefix="project-", dir=place))
    folder = Folder(path, PYTHON, user=USER, group=account.pw_gid, extra_groups=[])
    for one in (path, path / "home"):
        os.chown(one, account.pw_uid, account.pw_gid)
    modules = (Path(echelon.__file__).parents[1], sysconfig.get_path("purelib"))
    folder.environ["PYTHONPATH"] = os.pathsep.join(map(str, modules))
    folder.environ["PATH"] = f"{apptainer}:{folder.environ['PATH']}"
    return folder


@pytest.fixture(scope="module")
def sif(place, apptainer, torch_image):
    path = place / "torch.sif"
    environ = {**os.environ, "HOME": str(place), "PATH": f"{apptainer}:{os.environ['PATH']}"}
    build = ["apptainer", "build", FAST, str(path), f"oci-archive:{torch_image.path}"]
    subprocess.run(build, env=environ, check=True, timeout=400)
    path.chmod(0o644)
    return path


def is_left(place):
    """Tell whether a process of a runtime still runs."""
    return any(os.fsencode(place / "root") in cmdline(pid) for pid in all_pids())


def test_ranks_are_inside_and_a_restart_is_a_fork(project, place, sif):
    (project.path / "inside.py").write_text(INSIDE)
    done = project("run", "--procs=2", "--restarts=1", "--image", sif, "inside.py")
    assert done.returncode == 0, done.stderr
    assert "library /opt/echelon-library/echelon/__init__.py" in done.stdout
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
    assert wait_until(lambda: not is_left(place), timeout_s=20)


def test_a_stop_is_at_one_step_and_leaves_no_process(project, place, sif):
    script = shutil.copy(ROOT / "tests" / "slurm" / "survivor.py", project.path)
    command = project.start("run", "--procs=2", "--image", sif, script, "100000", "0.02")
    files = [project.path / f"consumed-{rank}" for rank in range(2)]
    going = lambda: all(path.exists() for path in files)  # noqa: E731
    assert wait_until(going, timeout_s=90), (project.path / "output").read_text()
    assert project("stop", "last").returncode == 0
    command.wait(timeout=60)
    (stopped,) = project.events("stopped")
    steps = [json.loads(path.read_text().splitlines()[-1])[2] for path in files]
    assert steps == [stopped["step"]] * 2
    assert wait_until(lambda: not is_left(place), timeout_s=20)


def test_an_archive_is_converted_once(project, place, bare_image):
    archive = shutil.copy(bare_image.path, place)
    (project.path / "plain.py").write_text("import os; print('from', os.environ['FROM_IMAGE'])\n")
    for _ in range(2):
        done = project("run", "--image", archive, "plain.py", timeout_s=300)
        assert (done.returncode, "from yes" in done.stdout) == (0, True), done.stderr
        (row,) = json.loads(project("image", "ls", "--json").stdout)
        assert row["path"].endswith(".sif")
