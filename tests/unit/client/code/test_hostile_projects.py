"""Projects of other users: none of their files determines what is sent to a host."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from echelon.client.code.code_listing import Kind, find_kind, find_root
from echelon.client.code.project import Project, ProjectFile
from echelon.client.code.snapshot import take_snapshot
from echelon.client.submit.checks import check_files
from echelon.client.submit.host_submission import find_project
from echelon.client.submit.requests import read_request
from echelon.core.records import UnreadableError
from echelon.core.shell import LocalShell
from echelon.core.userstate import remember
from echelon.errors import UsageError
from echelon.run.directory import RunDir
from echelon.spec.job_spec import JobSpec
from workdirs import describe, make_project, send, write

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\n"


@pytest.fixture
def home(tmp_path):
    write(tmp_path, {"home/.ssh/id_ed25519": KEY, "home/other/train.py": "other\n"})
    return tmp_path / "home"


@pytest.fixture
def project(home):
    """A clone in the user's home directory."""
    return make_project(home / "project")


def git(root, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "-C", root, *who, *words], check=True, env=env)


def pretend_record(project, contents):
    """Write the record of a workdir, as a repository may contain it."""
    files = {
        path: [hashlib.sha256(text.encode()).hexdigest(), len(text), False]
        for path, text in contents.items()
    }
    sent = {"files": files, "links": {}, "commit": {}, "origin": "laptop:/x"}
    record = {"project": sent, "before": None, "theirs": [], "stamps": {}}
    write(project, {".echelon/mirror.json": json.dumps(record)})


@pytest.mark.parametrize("versioned", [True, False], ids=["git", "folder"])
def test_a_record_in_a_clone_does_not_choose_what_is_sent(project, versioned):
    (project / "conf").symlink_to("../.ssh")
    pretend_record(project, {"train.py": "", "conf/id_ed25519": KEY, "../.ssh/id_ed25519": KEY})
    if versioned:
        git(project, "init", "-q")
        git(project, "add", "--force", ".")
    assert find_kind(project) == (Kind.GIT if versioned else Kind.FOLDER)
    found = describe(project)
    assert "pkg/a.py" in found.files
    assert not [path for path in found.files if "id_ed25519" in path]
    assert found.links["conf"] == "../.ssh"


@pytest.mark.parametrize(
    "content",
    [
        '{"files":{"train.py":["0",false,1,null]},"links":{}}',
        '{"project":{"files":[],"links":[]},"before":null,"theirs":[],"stamps":{}}',
        '{"project":{"files":{},"links":{}},"before":1,"theirs":[],"stamps":{}}',
        "[1]",
        "#!/bin/sh",
    ],
    ids=["manifest", "files", "before", "list", "script"],
)
def test_another_remembered_file_is_not_a_record(project, content):
    """Someone to whom the user gave a run knows files whose digests are recorded."""
    remember(content.encode(), os.environ)
    write(project, {".echelon/mirror.json": content})
    assert find_kind(project) == Kind.FOLDER
    assert "pkg/a.py" in describe(project).files


def test_a_record_that_moves_with_its_folder_is_still_known(project, home):
    send(project, home / "copy").check()
    assert find_kind(home / "copy") == Kind.WORKDIR
    (home / "copy").rename(home / "moved")
    assert find_kind(home / "moved") == Kind.WORKDIR


def test_a_record_in_the_target_does_not_choose_what_is_removed(project, home):
    """The target may be a clone too."""
    workdir = home / "work"
    write(workdir, {"train.py": "train\n", "notes.txt": "mine\n"})
    pretend_record(workdir, {"../.ssh/id_ed25519": KEY, "notes.txt": "mine\n", "train.py": ""})
    send(project, workdir).check()
    assert (workdir / "notes.txt").exists()
    assert (home / ".ssh" / "id_ed25519").exists()


def test_an_index_with_paths_behind_a_link_sends_nothing_from_there(project):
    """As in an archive with the folder `.git`, or after the folder became a link."""
    git(project, "init", "-q")
    write(project, {"conf/id_ed25519": "harmless\n"})
    git(project, "add", ".")
    (project / "conf" / "id_ed25519").unlink()
    (project / "conf").rmdir()
    (project / "conf").symlink_to("../.ssh")
    found = describe(project)
    assert not [path for path in found.files if path.startswith("conf")]
    assert found.links["conf"] == "../.ssh"
    run = RunDir.create(project.parent / "runs", "a-1")
    take_snapshot(run, JobSpec(script="train.py"), project, LocalShell())
    assert (run.code / "conf").is_symlink()


@pytest.mark.parametrize("place", ["..", "../other", "../.ssh"])
def test_settings_of_a_repository_do_not_move_it(project, home, place):
    git(project, "init", "-q")
    git(project, "config", "core.worktree", str(Path("..", place)))
    root, _ = find_root(project, project / "train.py", LocalShell())
    assert root == project
    assert not [path for path in describe(project).files if not (project / path).is_file()]


def test_a_repository_without_its_folder_is_not_one(project):
    """A bare one inside of another is found by git too, and its settings name any folder."""
    git(project, "init", "-q", "--bare", "sub")
    write(project, {"sub/train.py": "x\n"})
    git(project / "sub", "config", "core.bare", "false")
    git(project / "sub", "config", "core.worktree", "../..")
    place = project / "sub"
    assert find_root(place, place / "train.py", LocalShell()) == (place, Kind.FOLDER)


@pytest.mark.parametrize(
    ("key", "value"), [("chdir", "../other"), ("chdir", "conf"), ("script", "../other/train.py")]
)
def test_a_project_file_does_not_name_another_directory_to_send(
    project, home, monkeypatch, key, value
):
    (project / "conf").symlink_to("../other")
    write(project, {"echelon.toml": f'{key} = "{value}"\n'})
    monkeypatch.chdir(project)
    flags = {"host": "login", "script": "train.py"} if key == "chdir" else {"host": "login"}

    def find(more):
        request = read_request({**flags, **more}, project, {"HOME": str(home)})
        folder = Path(request.spec.chdir or project).absolute()
        return find_project(request, folder, folder / request.spec.script, LocalShell())

    with pytest.raises(UsageError, match=f"{key} in .*echelon.toml leads out of .*project"):
        find({})
    assert find({key: value}) == home / "other"  # named by the user
    assert find({key: "." if key == "chdir" else "pkg/a.py"}).is_relative_to(project)


def test_a_folder_that_becomes_a_link_while_sending_is_not_followed(project, home):
    described = Project(
        files={"pkg/id_ed25519": ProjectFile("0" * 64, len(KEY), executable=False)}, links={}
    )
    write(project, {"pkg/id_ed25519": KEY})
    (project / "pkg").rename(project / "before")
    (project / "pkg").symlink_to(home / ".ssh")
    done = send(project, home / "work", described)
    assert isinstance(done.laptop, UsageError)
    assert "changed while the project was sent" in done.laptop.message
    assert not list((home / "work").rglob("*ed25519*"))


@pytest.mark.parametrize("target", ["/dev/zero", "."])
def test_ignored_files_are_not_read_from_a_device(project, target):
    (project / ".echelonignore").symlink_to(target)
    assert "train.py" in describe(project).files


def test_a_script_that_is_a_device_is_an_error(project):
    (project / "zero.py").symlink_to("/dev/zero")
    with pytest.raises(UnreadableError, match="not a regular file"):
        check_files(JobSpec(script="zero.py"), project)
