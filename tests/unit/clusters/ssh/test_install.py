"""What is brought to a login host, and which Python there runs it."""

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


def test_the_first_python_that_is_new_enough_is_taken():
    said = "Welcome!\npython: /usr/bin/python3 3 9 18\npython: /opt/py 311/bin/python3 3 11 4\n"
    assert choose_python("login", said, "") == "/opt/py 311/bin/python3"


@pytest.mark.parametrize(
    ("said", "wanted", "message"),
    [
        ("python: /usr/bin/python3 3 9 18\n", "", "/usr/bin/python3 is 3.9.18"),
        ("", "", "no Python found"),
        ("", "~/env/bin/python", "'~/env/bin/python' of the profile does not run there"),
    ],
)
def test_without_one_the_error_lists_what_there_is(said, wanted, message):
    with pytest.raises(UnavailableError, match=r"no Python 3\.11 or newer on login") as caught:
        choose_python("login", said, wanted)
    assert message in caught.value.message
    assert 'python = "/path' in caught.value.hint


def test_a_full_quota_is_told_apart():
    error = explain_installation("login", "/home/me/.local: Disk quota exceeded\n")
    assert "Disk quota exceeded" in error.message
    assert "make room" in error.hint
    assert "ls -ld" in explain_installation("login", "/home/me/.local: Permission denied").hint


def test_requirements_of_extras_are_not_needed():
    requires = ["rich (>=13.8)", 'jinja2; extra == "full"', 'idna>=2; python_version < "3.13"']
    assert required_names(requires) == ["rich", "idna"]


def test_nothing_that_is_compiled_is_brought():
    assert not [name for name in find_files() if name.endswith((".so", ".pyc"))]
    assert "echelon/cli/hosted.py" in find_files()
    assert "echelon/monitor/web/page.html" in find_files()


def test_the_archive_is_the_same_each_time_and_another_python_has_another_folder():
    assert build_archive() == build_archive()
    assert find_id("") == find_id("")
    assert find_id("") != find_id("/opt/python")


def test_what_is_brought_runs_alone(tmp_path):
    """Every command can print its help with nothing else on the path, and runs can be listed."""
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
