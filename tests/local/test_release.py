"""What users get: built as for a release, installed where nothing of the repository is at hand."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from echelon import __version__

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "echelon"
MADE = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist", "runs", ".*", "_*cache")
PARTS = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in", "constraints.txt")
# A wheel of torch has to be copied, and a busy machine takes its time.
pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


def clean(**more):
    """The variables of somebody who has nothing of ours on any path."""
    ours = ("PYTHON", "VIRTUAL_ENV", "ECHELON", "SLURM", "SBATCH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, **more}


def call(*argv, code=0, **options):
    done = subprocess.run(
        argv, env=clean(), capture_output=True, text=True, timeout=900, check=False, **options
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with sdist and wheel, made from a copy of what is in the repository."""
    copy = tmp_path_factory.mktemp("copy")
    for name in PARTS:
        shutil.copy2(ROOT / name, copy / name)
    for name in ("src", "tools", "tests", "docs", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=MADE)
    before = set(copy.rglob("*"))
    call("bash", str(copy / "tools" / "dist.sh"), sys.executable)
    made = copy / "dist"
    # Neither the sources nor an environment have anything new: tests compare both with the pins.
    assert set(copy.rglob("*")) - before == {made, *made.iterdir()}
    return made


@pytest.fixture(scope="module")
def wheel(dist):
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """An environment with the wheel and what it needs, and nothing else."""
    return make_environment(tmp_path_factory.mktemp("base"), str(wheel))


def make_environment(folder, *wanted):
    venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    python = str(folder / "bin" / "python")
    # What is never imported need not be compiled: of torch, most.
    options = ["-qq", "--no-compile", "-c", str(ROOT / "constraints.txt")]
    call(python, "-m", "pip", "install", *options, *wanted)
    return folder / "bin"


def sources():
    """Every file of the package, as it lies in the repository."""
    found = (
        path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in str(path)
    )
    return {str(path.relative_to(SOURCE.parent)) for path in found}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.name == f"echelon-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == sources()
    assert any(name.endswith("licenses/LICENSE") for name in about)
    assert {"echelon/py.typed", "echelon/monitor/web/page.html"} <= names


def test_the_sdist_holds_what_a_build_needs_and_no_rubbish(dist):
    (path,) = dist.glob("*.tar.gz")
    assert path.name == f"echelon-{__version__}.tar.gz"
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    names = {
        member.name.partition("/")[2]
        for member in members
        if member.isfile() and ".egg-info/" not in member.name
    }
    assert names == {f"src/{name}" for name in sources()} | {*PARTS, "PKG-INFO", "setup.cfg"}


def test_the_version_is_written_in_one_place():
    number = re.escape(__version__)
    files = [*SOURCE.rglob("*.py"), ROOT / "pyproject.toml"]
    naming = [path for path in files if re.search(f'"{number}"', path.read_text())]
    assert naming == [SOURCE / "_version.py"]


def test_the_command_works_where_nothing_else_is_installed(installed, tmp_path):
    echelon = str(installed / "echelon")
    assert call(echelon, "--version", cwd=tmp_path).stdout == f"echelon {__version__}\n"
    assert "Start and stop runs:" in call(echelon, "--help", cwd=tmp_path).stdout
    script = call(echelon, "script", "--style", "torchrun", "--nodes", "2", "x.py", cwd=tmp_path)
    assert "#SBATCH --nodes=2\n" in script.stdout
    (tmp_path / "hello.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    ran = call(echelon, "run", "--procs", "2", "hello.py", cwd=tmp_path)
    assert sorted(ran.stdout.splitlines()) == ["0: rank 0", "1: rank 1"]
    where = call(str(installed / "python"), "-c", "import echelon; print(echelon.__file__)")
    assert where.stdout.startswith(str(installed.parent))


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        (["dash"], "starlette uvicorn plotly"),
        (["lint", "hello.sh"], "tree-sitter tree-sitter-bash"),
        (["pack", "."], "pillow"),
    ],
)
def test_what_an_extra_brings_is_told_where_it_is_missing(installed, tmp_path, arguments, packages):
    (tmp_path / "hello.sh").write_text("#!/bin/bash\nsrun hostname\n")
    done = call(str(installed / "echelon"), *arguments, code=69, cwd=tmp_path)
    assert f"hint: {installed / 'python'} -m pip install {packages}\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_the_training_library_the_plain_example_trains(wheel, tmp_path):
    found = make_environment(tmp_path / "env", f"{wheel}[train]")
    example = tmp_path / "train.py"
    shutil.copy2(ROOT / "examples" / "plain_loop" / "train.py", example)
    options = ["--epochs", "1", "--data-dir", str(ROOT / "examples" / "mnist" / "data")]
    done = call(str(found / "echelon"), "run", "--procs", "2", "train.py", *options, cwd=tmp_path)
    assert "COMPLETED" in done.stderr
