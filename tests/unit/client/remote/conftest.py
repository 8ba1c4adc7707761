"""A project, and the place of its copy on a login host."""

import pytest

from workdirs import make_project


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "project")


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "host" / "project"
