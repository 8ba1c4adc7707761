"""A real apptainer, Debian's newest, for an ordinary user: fixtures of the tests that use it."""

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
from local.inside import Folder
from procfs import all_pids, cmdline
from requirements import do_without, require, require_root

ROOT = Path(__file__).parents[1]
USER = "nobody"
PYTHON = "/usr/bin/python3"
"""Another user cannot read the Python of these tests."""
FAST = "--mksquashfs-args=-noI -noD -noF -noX"
"""Without compression, which would take minutes."""


@pytest.fixture(scope="session")
def apptainer_place():
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


@pytest.fixture(scope="session")
def apptainer(apptainer_place):
    """The path of its programs."""
    subprocess.run(
        [ROOT / "tools" / "apptainer.sh", apptainer_place / "root"], check=True, timeout=300
    )
    return apptainer_place / "root" / "usr" / "bin"


@pytest.fixture
def apptainer_project(apptainer_place, apptainer):
    account = pwd.getpwnam(USER)
    path = Path(tempfile.mkdtemp(prefix="project-", dir=apptainer_place))
    folder = Folder(path, PYTHON, user=USER, group=account.pw_gid, extra_groups=[])
    for one in (path, path / "home"):
        os.chown(one, account.pw_uid, account.pw_gid)
    modules = (Path(echelon.__file__).parents[1], sysconfig.get_path("purelib"))
    folder.environ["PYTHONPATH"] = os.pathsep.join(map(str, modules))
    folder.environ["PATH"] = f"{apptainer}:{folder.environ['PATH']}"
    return folder


@pytest.fixture(scope="session")
def torch_sif(apptainer_place, apptainer, torch_image):
    path = apptainer_place / "torch.sif"
    environ = {
        **os.environ,
        "HOME": str(apptainer_place),
        "PATH": f"{apptainer}:{os.environ['PATH']}",
    }
    build = ["apptainer", "build", FAST, str(path), f"oci-archive:{torch_image.path}"]
    subprocess.run(build, env=environ, check=True, timeout=400)
    path.chmod(0o644)
    return path


def is_left(apptainer_place):
    """Tell whether a process of a runtime still runs."""
    return any(os.fsencode(apptainer_place / "root") in cmdline(pid) for pid in all_pids())
