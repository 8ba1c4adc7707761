"""Copies of a project's code: what is copied, linked and refused."""

import errno
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from echelon.client.code import snapshot
from echelon.client.code.code_listing import Listing
from echelon.client.code.snapshot import (
    check_size,
    examine,
    find_largest,
    place_link,
    take_snapshot,
)
from echelon.core import files
from echelon.core.atomic_file import remove_tree, write_atomic
from echelon.core.files import Entry, Stamp
from echelon.core.shell import LocalShell
from echelon.errors import NotPermittedError, UsageError
from echelon.run.code import read_manifest, verify_code
from echelon.run.directory import RunDir
from echelon.run.request import render_spec
from echelon.spec.job_spec import JobSpec

SPEC = JobSpec(script="train.py")
LONG_AGO_NS = 10**18


@pytest.fixture
def project(tmp_path):
    """A folder with old files: new ones are never taken for unchanged."""
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    for name in ("train.py", "pkg/a.py", "pkg/b.py"):
        write(root / name, f"{name}\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    return root


def write(path, text, mtime_ns=LONG_AGO_NS):
    path.write_text(text)
    os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.fixture(autouse=True)
def _no_recent_files(monkeypatch):
    """Take all times as they are: a test cannot set a file's ctime."""
    monkeypatch.setattr(files, "RECENT_NS", -(10**18))


def take(root, name, spec=SPEC):
    run = RunDir.create(root / "runs", name)
    code = take_snapshot(run, spec, root, LocalShell())
    write_atomic(run.spec, render_spec(spec, code))
    return run, code


def test_a_copy_holds_the_code_read_only(project):
    run, code = take(project, "a-1")
    verify_code(run, code)
    assert (run.code / "pkg" / "a.py").read_text() == "pkg/a.py\n"
    modes = {
        path.relative_to(run.code).as_posix(): stat.S_IMODE(path.lstat().st_mode)
        for path in (run.code, *run.code.rglob("*"))
    }
    assert modes == {
        ".": 0o500,
        "pkg": 0o500,
        "pkg/a.py": 0o400,
        "pkg/b.py": 0o400,
        "train.py": 0o400,
        "tool.sh": 0o500,
    }
    assert (run.code / "train.py").stat().st_mtime_ns == LONG_AGO_NS
    assert not (run.code / "train.py").samefile(project / "train.py")
    remove_tree(run.path)
    assert not run.path.exists()


def test_an_unchanged_file_is_a_link_to_the_earlier_copy(project):
    first, _ = take(project, "a-1")
    write(project / "train.py", "edited\n")
    second, code = take(project, "a-2")
    verify_code(second, code)
    same = {
        name: (first.code / name).samefile(second.code / name)
        for name in ("train.py", "pkg/a.py", "pkg/b.py", "tool.sh")
    }
    assert same == {"train.py": False, "pkg/a.py": True, "pkg/b.py": True, "tool.sh": True}
    assert (first.code / "train.py").read_text() == "train.py\n"
    assert (second.code / "train.py").read_text() == "edited\n"
    assert not (second.code / "pkg" / "a.py").samefile(project / "pkg" / "a.py")


def test_unchanged_files_are_not_read(project, monkeypatch):
    take(project, "a-1")
    monkeypatch.setattr(snapshot, "read_settled", lambda _root, entry: pytest.fail(entry.path))
    run, code = take(project, "a-2")
    verify_code(run, code)


def test_the_same_content_with_another_time_is_linked_too(project):
    first, _ = take(project, "a-1")
    for number in (2, 3):  # the third finds the times of the second
        write(project / "train.py", "train.py\n", LONG_AGO_NS + number)
        run, code = take(project, f"a-{number}")
        verify_code(run, code)
        assert (first.code / "train.py").samefile(run.code / "train.py")


def test_a_file_changed_a_moment_ago_is_read_again(project, monkeypatch):
    """Its times may be the same after another edit."""
    monkeypatch.setattr(files, "RECENT_NS", 10**18)
    run, _ = take(project, "a-1")
    assert {one.source for one in read_manifest(run).files.values()} == {None}


def test_files_of_a_run_from_another_user_are_not_linked_to(project):
    """Its manifest may say of every file that it is the same as its copy."""
    known, code = take(project, "a-1")
    shutil.copytree(known.path, known.path.parent / "b-1", symlinks=True)
    remove_tree(known.path)
    foreign = RunDir.open(known.path.parent / "b-1")
    copied = foreign.code / "train.py"
    copied.chmod(0o600)
    times = copied.stat()
    copied.write_text("train.PY\n")
    os.utime(copied, ns=(times.st_mtime_ns, times.st_mtime_ns))
    copied.chmod(0o400)
    manifest = json.loads(foreign.manifest.read_text())
    digest = hashlib.sha256(copied.read_bytes()).hexdigest()
    manifest["files"]["train.py"][0] = digest
    manifest["files"]["train.py"][3] = list(Stamp.of((project / "train.py").stat()))
    foreign.manifest.write_text(json.dumps(manifest))
    second, code = take(project, "a-2")
    verify_code(second, code)
    assert (second.code / "train.py").read_text() == "train.py\n"


def test_a_copy_with_other_content_and_the_same_times_is_not_linked_to(project):
    """Its manifest is the user's: the run was given away, and came back."""
    first, _ = take(project, "a-1")
    copied = first.code / "train.py"
    times = copied.stat()
    copied.chmod(0o600)
    copied.write_text("train.PY\n")
    os.utime(copied, ns=(times.st_mtime_ns, times.st_mtime_ns))
    copied.chmod(0o400)
    assert copied.stat().st_size == times.st_size
    second, code = take(project, "a-2")
    verify_code(second, code)
    assert (second.code / "train.py").read_text() == "train.py\n"


def test_an_altered_copy_is_not_linked_to(project):
    first, code = take(project, "a-1")
    for name in ("pkg/a.py", "pkg/b.py"):
        (first.code / name).chmod(0o600)
    (first.code / "pkg" / "a.py").write_text("PKG/A.PY\n")
    (first.code / "pkg" / "b.py").write_text("altered\n")
    (first.code / "pkg").chmod(0o700)
    second, own = take(project, "a-2")
    verify_code(second, own)
    assert (second.code / "pkg" / "a.py").read_text() == "pkg/a.py\n"
    assert (second.code / "pkg" / "b.py").read_text() == "pkg/b.py\n"
    with pytest.raises(NotPermittedError, match=r"pkg/[ab]\.py is not what was submitted"):
        verify_code(first, code)


def test_without_hard_links_files_are_copied(project, monkeypatch):
    take(project, "a-1")

    def refuse(*_paths, **_options):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    run, code = take(project, "a-2")
    verify_code(run, code)


def test_a_mode_that_changed_is_not_shared(project):
    first, _ = take(project, "a-1")
    (project / "train.py").chmod(0o755)
    second, code = take(project, "a-2")
    verify_code(second, code)
    assert not first.code.joinpath("train.py").stat().st_mode & 0o100
    assert second.code.joinpath("train.py").stat().st_mode & 0o100


def test_links_lead_into_the_copy_if_they_led_into_the_project(project, tmp_path):
    (tmp_path / "outside.txt").write_text("outside\n")
    links = {
        "beside.py": "train.py",
        "pkg/up.py": "../train.py",
        "absolute.py": str(project / "pkg" / "a.py"),
        "away": "../outside.txt",
        "broken": "nothing",
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    run, code = take(project, "a-1")
    verify_code(run, code)
    assert (run.code / "absolute.py").resolve() == run.code / "pkg" / "a.py"
    assert (run.code / "pkg" / "up.py").resolve() == run.code / "train.py"
    assert (run.code / "away").read_text() == "outside\n"
    assert (run.code / "broken").readlink() == Path("nothing")
    assert place_link(project, "a/b", "..") == ".."


def test_entries_beside_the_code_are_links_to_the_project(project):
    (project / "data").mkdir()
    (project / "data" / "x").write_text("1\n")
    run, code = take(project, "a-1")
    verify_code(run, code)
    assert (run.code / "data").readlink() == project / "data"
    assert not (run.code / "runs").exists()


def test_files_that_vanish_are_left_out(project, monkeypatch):
    original = snapshot.examine

    def examine_and_delete(root, listing):
        entries = list(original(root, listing))
        (root / "pkg" / "b.py").unlink()
        return entries

    monkeypatch.setattr(snapshot, "examine", examine_and_delete)
    run, code = take(project, "a-1")
    verify_code(run, code)
    assert not (run.code / "pkg" / "b.py").exists()


def test_a_program_on_the_path_has_no_project(project):
    assert take(project, "a-1", JobSpec(script="bash"))[1] is None


def entries(root, sizes):
    return [
        Entry(path, os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, size, 0, 0, 0)))
        for path, size in sizes.items()
    ]


def test_too_many_bytes_are_an_error_that_names_the_largest(tmp_path):
    sizes = {
        "a.py": 10**4,
        "weights/model.bin": 10**9,
        **{f"img/{n}.png": 10**6 for n in range(99)},
    }
    with pytest.raises(UsageError) as caught:
        check_size(tmp_path, entries(tmp_path, sizes))
    assert "1.1 GB of code" in caught.value.message
    assert "weights/model.bin (1.0 GB), img/ (99 MB)" in caught.value.message
    assert f"echo '/weights/model.bin' >> '{tmp_path}/.echelonignore'" in caught.value.hint
    assert find_largest({"a": 1}) == [("a", 1)]


def test_too_many_files_are_an_error_that_names_the_fullest_folder(tmp_path):
    sizes = {"a.py": 1, **{f"img/{n}.png": 1 for n in range(snapshot.MOST_FILES)}}
    with pytest.raises(UsageError) as caught:
        check_size(tmp_path, entries(tmp_path, sizes))
    assert "more than 50,000 files. The largest: img/ (50,000 files)" in caught.value.message
    assert "echo '/img/'" in caught.value.hint


def test_a_home_directory_is_not_a_project(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        check_size(tmp_path, entries(tmp_path, {"film.mkv": 10**9}))
    assert "move the script into a directory of its own" in caught.value.hint


def test_a_run_directory_with_a_colon_is_an_error(project, tmp_path):
    run = RunDir.create(tmp_path / "a:b", "a-1")
    with pytest.raises(UsageError, match="separated by colons"):
        take_snapshot(run, SPEC, project, LocalShell())


def test_deleted_files_of_a_listing_are_left_out(project):
    listing = Listing(code=("train.py", "gone.py", "train.py/x", "pkg"), beside=())
    assert [entry.path for entry in examine(project, listing)] == ["train.py"]


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda code: (code / "torch.py").write_text("evil\n"), r"torch\.py was added"),
        (lambda code: (code / "train.py").unlink(), r"train\.py is missing"),
        (lambda code: (code / "train.py").chmod(0o600), ""),
        (lambda code: (code.parent / "code.json").write_text("{}"), "code.json is not what was"),
        (lambda code: (code.parent / "code.json").unlink(), "code.json is not what was"),
    ],
)
def test_altered_code_is_refused(project, alter, says):
    run, code = take(project, "a-1")
    run.code.chmod(0o700)
    alter(run.code)
    if not says:
        verify_code(run, code)
        return
    with pytest.raises(NotPermittedError, match=says):
        verify_code(run, code)


def test_a_link_that_leads_elsewhere_is_refused(project, tmp_path):
    (project / "alias.py").symlink_to("train.py")
    run, code = take(project, "a-1")
    run.code.chmod(0o700)
    (run.code / "alias.py").unlink()
    (run.code / "alias.py").symlink_to(tmp_path / "evil.py")
    with pytest.raises(NotPermittedError, match=r"alias\.py is not what was submitted"):
        verify_code(run, code)


def test_bytecode_is_removed(project):
    """Root can write into read-only folders, and so does its Python."""
    run, code = take(project, "a-1")
    run.code.chmod(0o700)
    (run.code / "__pycache__").mkdir()
    (run.code / "__pycache__" / "train.pyc").touch()
    verify_code(run, code)
    assert not (run.code / "__pycache__").exists()
