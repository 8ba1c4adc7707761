"""The files that are installed on a login host, and the Python there."""

import io
import subprocess
import sys
import tarfile

import pytest

from echelon.clusters.ssh.files import find_files, required_names
from echelon.clusters.ssh.install import (
    build_archive,
    choose_python,
    explain_installation,
)
from echelon.clusters.ssh.installed import find_id
from echelon.errors import UnavailableError


def test_the_first_python_that_is_new_enough_is_chosen():
    listing = "Welcome!\npython: /usr/bin/python3 3 9 18\npython: /opt/py 311/bin/python3 3 11 4\n"
    assert choose_python("login", listing, "") == "/opt/py 311/bin/python3"


@pytest.mark.parametrize(
    ("listing", "wanted", "message"),
    [
        ("python: /usr/bin/python3 3 9 18\n", "", "/usr/bin/python3 is 3.9.18"),
        ("", "", "no Python found"),
        ("", "~/env/bin/python", "'~/env/bin/python' of the profile does not run there"),
    ],
)
def test_a_host_without_a_new_python_lists_those_found(listing, wanted, message):
    with pytest.raises(UnavailableError, match=r"no Python 3\.11 or newer on login") as caught:
        choose_python("login", listing, wanted)
    assert message in caught.value.message
    assert 'python = "/path' in caught.value.hint


def test_a_full_quota_has_its_own_hint():
    error = explain_installation("login", "/home/me/.local: Disk quota exceeded\n")
    assert "Disk quota exceeded" in error.message
    assert "make room" in error.hint
    assert "ls -ld" in explain_installation("login", "/home/me/.local: Permission denied").hint


def test_requirements_of_extras_are_not_installed():
    requires = ["rich (>=13.8)", 'jinja2; extra == "full"', 'idna>=2; python_version < "3.13"']
    assert required_names(requires) == ["rich", "idna"]


def test_compiled_packages_are_not_installed():
    assert not [name for name in find_files() if name.endswith((".so", ".pyc"))]
    assert "echelon/cli/hosted.py" in find_files()
    assert "echelon/monitor/web/page.html" in find_files()


def test_the_archive_is_reproducible_and_each_python_has_a_folder():
    assert build_archive() == build_archive()
    assert find_id("") == find_id("")
    assert find_id("") != find_id("/opt/python")


def test_the_installed_files_run_without_other_packages(tmp_path):
    """Every command prints its help without other packages, and runs are listed."""
    with tarfile.open(fileobj=io.BytesIO(build_archive())) as archive:
        archive.extractall(tmp_path / "lib", filter="data")
    look = (
        "import sys; sys.path.insert(0, 'lib')\n"
        "from echelon.cli.main import run\n"
        "import rich.table, rich.live\n"
        "codes = [run([*words]) for words in (['ps'], ['dash', '--help'], ['submit', '--help'])]\n"
        "assert not any(codes), codes\n"
        "foreign = [m.__file__ for m in list(sys.modules.values())\n"
        "           if 'site-packages' in str(getattr(m, '__file__', ''))]\n"
        "assert not foreign, foreign\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", look]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
