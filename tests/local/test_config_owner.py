"""Another user's project file, in a folder where everybody may write: no command obeys it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from local.test_other_user import OTHER, as_other
from requirements import require_root

KEYS = {
    "prologue": '["touch {proof}"]',
    "notify": '"touch {proof}"',
    "python": '"{program}"',
    "name": '"theirs"',
}
"""What the other user asks for."""
SCRIPT = "import torch\n"
PARTITION = (
    "PartitionName=cpu Default=YES State=UP MaxNodes=UNLIMITED MaxTime=UNLIMITED TotalNodes=1"
)
COMMANDS = {
    "config": (["config", "train.py"], "prologue notify python name"),
    "script": (["script", "train.py"], "prologue notify python name"),
    "dry-run": (["submit", "--dry-run", "--venv", sys.prefix, "train.py"], "python name"),
    "doctor": (["doctor", "--short"], "python"),
    "run": (["run", "--procs", "1", "train.py"], "prologue notify name"),
}
"""The command, and the keys that it would obey; a prologue hides a wrong Python."""


class Place:
    """A folder like /tmp, with the other user's files in it, and one of ours below."""

    def __init__(self, shared):
        self.shared, self.work = shared, shared / "work"
        self.proof, self.file = shared / "proof", shared / "echelon.toml"
        shared.chmod(0o1777)
        self.work.mkdir(mode=0o755)
        (self.work / "train.py").write_text(SCRIPT)
        programs = shared / "bin"
        programs.mkdir(mode=0o755)
        (programs / "scontrol").write_text(f"#!/bin/sh\necho '{PARTITION}'\n")
        (programs / "scontrol").chmod(0o755)

    def attack(self, keys, name="echelon.toml", header=""):
        """Let the other user write a request, and a Python that leaves a trace."""
        program = self.shared / "python"
        lines = [f"{key} = {KEYS[key]}\n" for key in keys.split()]
        text = header + "".join(lines).format(proof=self.proof, program=program)

        def write():
            program.write_text(f'#!/bin/sh\ntouch {self.proof}\nexec {sys.executable} "$@"\n')
            program.chmod(0o755)
            (self.shared / name).write_text(text)
            return os.getuid()

        assert as_other(write) == OTHER

    def run(self, *arguments, folder=None):
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "ECHELON"))}
        home = self.shared / "home"
        home.mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-m", "echelon", *arguments],
            cwd=folder or self.work,
            env={**outer, "HOME": str(home), "PATH": f"{self.shared / 'bin'}:{outer['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )


@pytest.fixture
def place():
    require_root("to be another user")
    shared = Path(tempfile.mkdtemp())
    try:
        yield Place(shared)
    finally:
        shutil.rmtree(shared)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_file_in_a_parent_folder_runs_nothing(place, command):
    arguments, keys = COMMANDS[command]
    place.attack(keys)
    done = place.run(*arguments)
    assert not place.proof.exists(), done
    assert "theirs" not in done.stdout
    assert done.stderr.count(f"warning: ignored {place.file}: ") == 1
    assert done.returncode in ((0, 1, 3) if command == "doctor" else (0,)), done


def test_a_strangers_table_in_a_pyproject_counts_as_little(place):
    place.attack("name", "pyproject.toml", "[tool.echelon]\n")
    done = place.run("config")
    assert "theirs" not in done.stdout
    assert f"warning: ignored {place.shared / 'pyproject.toml'}: " in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["dry-run", "doctor", "run"])
def test_a_strangers_file_in_the_working_folder_is_an_error(place, command):
    arguments, keys = COMMANDS[command]
    place.attack(keys)
    (place.shared / "train.py").write_text(SCRIPT)
    done = place.run(*arguments, folder=place.shared)
    assert not place.proof.exists(), done
    assert done.returncode == 77, done
    assert done.stderr.startswith(f"error: {place.file} is not trusted: {place.file} belongs to")
    assert "--config echelon.toml" in done.stderr


def test_a_strangers_file_is_used_by_those_who_name_it(place):
    place.attack("name")
    done = place.run("config", "--config", "../echelon.toml")
    assert done.returncode == 0, done
    assert "theirs" in done.stdout
    assert done.stderr == ""


def test_our_own_file_in_such_a_folder_counts(place):
    """The sticky bit keeps others from replacing it."""
    place.file.write_text("name = 'ours'\n")
    done = place.run("config")
    assert re.search(rf"^name +ours +{place.file}$", done.stdout, re.MULTILINE), done
    assert done.stderr == ""
