"""A launcher is executed from memory, and only if it is the one that was submitted."""

import os
import subprocess
import sys
import zipfile

import pytest

from echelon.client.submit.launcher import ship_launcher
from echelon.launch.roles import launcher_command

PLANTED = 'open("planted", "w").close()\n'
"""What a stranger would have executed."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    path = tmp_path_factory.mktemp("shipped") / "launcher"
    digest = ship_launcher(path)
    return digest, path.read_bytes()


@pytest.fixture
def start(tmp_path, shipped, monkeypatch):
    """Give a function that starts a program of a launcher in an empty folder."""
    digest, content = shipped
    (tmp_path / "launcher").write_bytes(content)
    monkeypatch.chdir(tmp_path)

    def start(*arguments, role="telemetry", **environ):
        argv = launcher_command(sys.executable, digest, tmp_path / "launcher", role)
        return subprocess.run(
            [*argv, *arguments],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    return start


def is_started(done):
    """Whether a program was: without its arguments it says so."""
    return "echelon/launch/telemetry/telemetry.py" in done.stderr


def test_what_was_submitted_is_started(start):
    done = start()
    assert is_started(done), done.stderr


def test_modules_are_those_of_the_launcher_and_have_their_bytecode(tmp_path, start, shipped):
    """Also where another Echelon is installed, as here."""
    done = start()
    assert f'File "{tmp_path}/launcher/echelon/launch/__main__.py"' in done.stderr
    names = zipfile.ZipFile(tmp_path / "launcher").namelist()
    tag = sys.implementation.cache_tag
    assert {"pynvml.py", "echelon/train/probe.py"} <= set(names)
    assert f"echelon/launch/telemetry/__pycache__/telemetry.{tag}.pyc" in names
    assert len(shipped[1]) < 1 << 23


def test_one_that_was_changed_is_not_executed(tmp_path, start):
    launcher = tmp_path / "launcher"
    launcher.write_bytes(PLANTED.encode() + launcher.read_bytes())
    done = start()
    assert done.returncode == 1
    assert done.stderr.startswith(f"refused to start: {launcher} is not what was submitted")
    assert not (tmp_path / "planted").exists()


def test_a_program_in_its_place_is_not_executed(tmp_path, start):
    (tmp_path / "launcher").unlink()
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__main__.py").write_text(PLANTED)
    done = start()
    assert done.returncode == 1
    assert "cannot read the launcher of the run" in done.stderr
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("name", ["hashlib", "json", "sitecustomize", "echelon/__init__"])
def test_modules_that_lie_in_the_current_folder_are_not_imported(tmp_path, start, name):
    (tmp_path / "echelon").mkdir()
    (tmp_path / f"{name}.py").write_text(PLANTED)
    assert is_started(start())
    assert not (tmp_path / "planted").exists()
