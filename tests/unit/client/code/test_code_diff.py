"""Differences between two versions of the code."""

import json
import os
import shutil

import pytest

from echelon.client.code.code_diff import (
    Side,
    compare,
    read_project,
    read_run,
    render_diff,
)
from echelon.client.code.snapshot import copy_again, take_snapshot
from echelon.core.atomic_file import write_atomic
from echelon.core.files import Stamp
from echelon.core.shell import LocalShell
from echelon.errors import NotFoundError, NotPermittedError
from echelon.run.code import read_manifest, verify_code
from echelon.run.directory import RunDir
from echelon.run.request import read_code, render_spec
from echelon.spec.job_spec import JobSpec

SPEC = JobSpec(script="train.py")


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "big").touch()
    (root / "train.py").write_text("one\ntwo\n")
    (root / "logo.png").write_bytes(b"\0\1")
    (root / "alias.py").symlink_to("train.py")
    return root


def take(root, name):
    run = RunDir.create(root / "runs", name)
    code = take_snapshot(run, SPEC, root, LocalShell())
    write_atomic(run.spec, render_spec(SPEC, code))
    return run


def test_an_unchanged_project_does_not_differ(project):
    run = take(project, "a-1")
    assert compare(read_run(run), read_project(run, LocalShell())) == {}


def test_every_kind_of_change_is_shown(project):
    run = take(project, "a-1")
    (project / "train.py").write_text("one\n2")
    (project / "logo.png").write_bytes(b"\0\1\2")
    (project / "new.py").write_text("new\n")
    (project / "alias.py").unlink()
    (project / "alias.py").symlink_to("new.py")
    (project / "data" / "big").write_text("data is not compared\n")
    second = take(project, "a-2")
    old, now = read_run(run), read_project(run, LocalShell())
    changes = {"alias.py": "changed", "logo.png": "changed", "new.py": "added"}
    assert compare(old, now) == compare(old, read_run(second)) == {**changes, "train.py": "changed"}
    assert compare(now, old)["new.py"] == "removed"
    assert "\n".join(render_diff(old, now)) == (
        "--- a-1/alias.py\n+++ ./alias.py\n@@ -1 +1 @@\n-link to train.py\n+link to new.py\n"
        "logo.png: changed, 2 → 3 bytes\n"
        "--- /dev/null\n+++ ./new.py\n@@ -0,0 +1 @@\n+new\n"
        "--- a-1/train.py\n+++ ./train.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        "\\ No newline at end of file"
    )


def test_a_large_file_is_not_compared_line_by_line(tmp_path):
    (tmp_path / "a.csv").write_text("x\n" * 2**20)
    old = Side(name="a", folder=tmp_path, files={})
    new = Side(name="b", folder=tmp_path, files={"a.csv": "1"})
    assert list(render_diff(old, new)) == ["a.csv: added, 0 → 2097152 bytes"]


def test_a_run_without_a_copy_cannot_be_compared(tmp_path):
    run = RunDir.create(tmp_path, "a-1")
    run.spec.write_text("")
    with pytest.raises(NotFoundError, match="has no copy of its code"):
        read_run(run)


def test_a_diff_with_a_deleted_project_is_an_error(project, tmp_path):
    run = take(project, "a-1")
    project.rename(tmp_path / "renamed")
    moved = RunDir.open(tmp_path / "renamed" / "runs" / "a-1")
    with pytest.raises(NotFoundError, match="is gone"):
        read_project(moved, LocalShell())
    assert run.run_id == "a-1"


def test_a_rerun_with_the_same_code_shares_its_files(project):
    first = take(project, "a-1")
    (project / "train.py").write_text("edited\n")
    second = RunDir.create(project / "runs", "a-2")
    copy_again(first, second)
    verify_code(second, read_code(first))
    assert (second.code / "train.py").samefile(first.code / "train.py")
    assert (second.code / "train.py").read_text() == "one\ntwo\n"


def test_a_fetched_run_is_compared_with_a_project_on_this_machine(project, tmp_path):
    """The run's own project is on another machine, under another name."""
    (project / "away").symlink_to("../outside")
    (project / "inside.py").symlink_to(project / "train.py")
    here = tmp_path / "deep" / "laptop"
    shutil.copytree(project, here, symlinks=True)
    (here / "inside.py").unlink()
    (here / "inside.py").symlink_to(here / "train.py")
    run = take(project, "a-1")
    fetched = RunDir.create(tmp_path / "fetched", "a-1")
    for name in ("spec.toml", "code.json"):
        shutil.copy(run.path / name, fetched.path / name)
    shutil.copytree(run.code, fetched.code, symlinks=True)
    project.rename(tmp_path / "gone")
    old = read_run(fetched)
    assert compare(old, read_project(fetched, LocalShell(), here)) == {}
    (here / "train.py").write_text("one\n2\n")
    (here / "new.py").write_text("new\n")
    now = read_project(fetched, LocalShell(), here)
    assert compare(old, now) == {"new.py": "added", "train.py": "changed"}
    assert "-two" in list(render_diff(old, now))
    with pytest.raises(NotFoundError, match=r"the project of the run .* is gone"):
        read_project(fetched, LocalShell(), tmp_path / "nowhere")


# --- runs from elsewhere ------------------------------------------------------------------------


def change_manifest(run, change):
    record = json.loads(run.manifest.read_text())
    change(record)
    run.manifest.write_text(json.dumps(record))


@pytest.mark.parametrize(
    "path", ["../../../secret", "/etc/passwd", "a//b", "", "train.py/x", "./train.py"]
)
def test_a_manifest_with_a_path_out_of_the_code_is_refused(project, path):
    run = take(project, "a-1")
    (project / "secret").write_text("secret\n")
    change_manifest(run, lambda record: record["files"].update({path: ["0" * 64, False, 1, None]}))
    with pytest.raises(NotPermittedError, match=r"code\.json is not what was submitted: refused"):
        read_run(run)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "9" * 5000, "null", "[" * 9000])
def test_a_manifest_with_invalid_numbers_is_refused(project, number):
    run = take(project, "a-1")
    text = run.manifest.read_text()
    known = str(read_manifest(run).files["train.py"].mtime_ns)
    run.manifest.write_text(text.replace(f",{known},", f",{number},", 1))
    with pytest.raises(NotPermittedError, match=r"code\.json is not what was submitted"):
        read_run(run)


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "vast"])
def test_links_and_pipes_in_a_copy_are_not_read(project, what):
    run = take(project, "a-1")
    second = take(project, "a-2")
    (run.code / "train.py").parent.chmod(0o700)
    (run.code / "train.py").unlink()
    if what == "pipe":
        os.mkfifo(run.code / "train.py")
    elif what == "vast":
        with (run.code / "train.py").open("wb") as file:
            file.truncate(1 << 40)
    else:
        (run.code / "train.py").symlink_to(what)
    change_manifest(run, lambda record: record["files"]["train.py"].__setitem__(0, "0" * 64))
    if what == "vast":
        (line,) = render_diff(read_run(run), read_run(second))
        assert line == f"train.py: changed, {1 << 40} → 8 bytes"
        return
    with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
        list(render_diff(read_run(run), read_run(second)))


def test_times_in_a_manifest_from_another_machine_are_not_trusted(project):
    run = take(project, "a-1")
    write_times(run, project)
    assert compare(read_run(run), read_project(run, LocalShell())) == {"train.py": "changed"}


def write_times(run, project):
    """Let a manifest say that the project's script is the same as another content."""
    stamp = list(Stamp.of((project / "train.py").stat()))
    entry = ["0" * 64, False, stamp[1], stamp]
    change_manifest(run, lambda record: record["files"].update({"train.py": entry}))
