"""A real Ray cluster for the tests in this folder."""

import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from raycluster import RayNodes
from rig import do_without

NODES = ("alpha", "beta")


@pytest.fixture(scope="module")  # its processes come and go: no company for other tests
def _ray():
    try:
        version("ray")
    except PackageNotFoundError:
        do_without("needs ray: run `tools/setup.sh user test`")
    cluster = RayNodes()
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(_ray):
    """A head, and two nodes of two CPUs each, whatever the test before did."""
    _ray.restore(NODES)
    yield _ray
    _ray.calm()


@pytest.fixture
def folder():
    """Where all nodes see it, and root's own mounts can be laid over it."""
    path = Path(tempfile.mkdtemp(prefix="echelon-ray-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
