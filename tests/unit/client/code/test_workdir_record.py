"""Submissions on a host from a workdir: the copied code and its commit."""

import os
import subprocess

import pytest

from echelon.client.code.code_listing import Kind, find_root, list_project, read_commit
from echelon.client.code.snapshot import take_snapshot
from echelon.client.code.workdir_record import find_record
from echelon.core.shell import LocalShell
from echelon.run.code import verify_code
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec
from workdirs import content, make_project, send, write


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "project")


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "host" / "project"


def git(root, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "-C", root, *who, *words], check=True, env=env)


@pytest.fixture
def repository(project):
    git(project, "init", "-q", "-b", "main")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    return project


def test_a_submission_on_the_host_records_the_commit_of_the_laptop(repository, workdir):
    send(repository, workdir).check()
    write(workdir, {"data/big": "data\n", "pkg/ext.so": "", "pkg/__pycache__/x.pyc": ""})
    write(workdir, {".venv/pyvenv.cfg": "", "runs/x/y": ""})
    shell, runs = LocalShell(), workdir / "runs"
    assert find_root(workdir / "pkg", None, shell) == (workdir, Kind.WORKDIR)
    assert find_root(workdir.parent, workdir / "train.py", shell) == (workdir, Kind.WORKDIR)
    listing = list_project(workdir, shell, kind=Kind.WORKDIR, runs=runs)
    assert set(listing.code) == set(content(repository)) - {
        name for name in content(repository) if name.startswith(".git/")
    }
    assert set(listing.beside) == {"data", "pkg/ext.so"}
    run = RunDir.create(runs, "a-1")
    code = take_snapshot(run, JobSpec(script="train.py"), workdir, shell)
    expected = read_commit(repository, shell, kind=Kind.GIT, runs=repository / "runs")
    assert (code.commit, code.branch, code.dirty) == (expected.commit, "main", False)
    assert code.root == str(workdir)
    verify_code(run, code)


@pytest.mark.parametrize("change", ["edit", "remove", "link", "mode"])
def test_a_file_that_was_edited_on_the_host_makes_the_commit_dirty(repository, workdir, change):
    send(repository, workdir).check()
    if change == "edit":
        write(workdir, {"train.py": "edited there\n"})
    elif change == "remove":
        (workdir / "train.py").unlink()
    elif change == "mode":
        (workdir / "train.py").chmod(0o700)
    else:
        (workdir / "alias.py").unlink()
        (workdir / "alias.py").symlink_to("tool.sh")
    run = RunDir.create(workdir / "runs", "a-1")
    code = take_snapshot(run, JobSpec(script="tool.sh"), workdir, LocalShell())
    assert code.dirty
    assert len(code.commit) == 40
    verify_code(run, code)
    if change == "edit":
        assert (run.code / "train.py").read_text() == "edited there\n"


def test_uncommitted_changes_on_the_laptop_are_known_on_the_host(repository, workdir):
    write(repository, {"train.py": "edited here\n"})
    send(repository, workdir).check()
    assert find_record(workdir).project.commit.dirty


def test_a_repository_inside_a_workdir_is_a_project_of_its_own(project, workdir):
    send(project, workdir).check()
    write(workdir, {"other/x.py": "x\n"})
    git(workdir / "other", "init", "-q")
    assert find_root(workdir / "other", None, LocalShell()) == (workdir / "other", Kind.GIT)
