"""A real cluster for the tests in this folder."""

import shutil
import tempfile
from pathlib import Path

import pytest

from requirements import require, require_root
from slurm.cluster import Cluster


@pytest.fixture(scope="session")
def home():
    """A folder for sandboxes: a short path, on a local disk, open to other users' jobs."""
    require("slurmctld", "slurmd", "munged", "sbatch", "ip", "nsenter", "unshare")
    folder = Path(tempfile.mkdtemp(prefix="echelon-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    for name in [entry.name for entry in folder.iterdir() if entry.name != ".state"]:
        Cluster(folder, name)("down", check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _cluster(home):
    cluster = Cluster(home)
    cluster("up")
    yield cluster
    cluster("down", check=False)


@pytest.fixture
def cluster(_cluster):
    """Four nodes with four GPUs each, all idle, whatever the test before did."""
    yield _cluster
    _cluster.calm()


@pytest.fixture
def full(cluster):
    """The cluster, where it has networks of its own."""
    require_root("networks of their own for the nodes")
    return cluster
