"""Which files belong to a project: with git, without it, and with `.echelonignore`."""

import os
import subprocess

import pytest

from echelon.api.project_files import (
    Commit,
    Kind,
    find_root,
    find_runs,
    find_topmost,
    list_project,
    parse_commit,
    parse_ignore,
    read_commit,
)
from echelon.core.shell import LocalShell
from echelon.errors import UsageError


def write(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n")


def git(root, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    allow = ["-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", root, *who, *allow, *words], check=True, env=env)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    write(root, "train.py", "src/pkg/__init__.py", "old.py")
    (root / ".gitignore").write_text("data/\n*.so\n__pycache__/\n*.jpg\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


def listed(root, *, is_git=True, runs=None):
    runs = runs or root / "runs"
    return list_project(root, LocalShell(), kind=Kind.GIT if is_git else Kind.FOLDER, runs=runs)


def test_the_code_is_what_git_would_add(repository):
    (repository / "train.py").write_text("changed\n")
    (repository / "old.py").unlink()
    write(repository, "new.py", "ünï code.py", "data/big.bin", "src/pkg/ext.so")
    write(repository, "src/pkg/__pycache__/x.pyc", "photos/1.jpg", "photos/2.jpg")
    found = listed(repository)
    # git still lists what was deleted; whoever copies the files leaves it out.
    assert set(found.code) == {
        *(".gitignore", "train.py", "new.py", "ünï code.py", "src/pkg/__init__.py", "old.py"),
    }
    assert set(found.beside) == {"data", "photos", "src/pkg/ext.so"}


def test_runs_are_no_code_wherever_they_are(repository):
    write(repository, "runs/a-1/spec.toml", "runs/a-1/job.sbatch", "runs/a-1/code/train.py")
    write(repository, "sub/runs/b-2/spec.toml", "sub/runs/b-2/job.sbatch", "sub/runs/b-2/big")
    found = listed(repository)
    assert not [path for path in (*found.code, *found.beside) if "runs" in path]


def test_submodules_and_other_repositories_inside_are_part_of_it(repository, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, "lib.py")
    git(other, "add", ".")
    git(other, "commit", "-qm", "lib")
    git(repository, "submodule", "add", "-q", str(other), "third/party")
    git(repository, "clone", "-q", str(other), "nested")
    write(repository, "third/party/new.py", "nested/edited.py")
    found = set(listed(repository).code)
    assert {"third/party/lib.py", "third/party/new.py"} <= found
    assert {"nested/lib.py", "nested/edited.py"} <= found


def test_without_git_caches_environments_data_and_runs_are_left_out(tmp_path):
    write(tmp_path, "train.py", "pkg/__init__.py", "pkg/__pycache__/x.pyc", "conf/a.yaml")
    write(tmp_path, "env/pyvenv.cfg", "env/lib/x.py", "data/train.bin", "logs/x", "runs/r/x")
    write(tmp_path, "datasets/__init__.py", "my/old/spec.toml", "my/old/job.sbatch")
    found = listed(tmp_path, is_git=False)
    assert set(found.code) == {"train.py", "pkg/__init__.py", "conf/a.yaml", "datasets/__init__.py"}
    assert set(found.beside) == {"env", "data", "logs", "my"}


def test_the_runs_are_not_linked_nor_what_contains_them(tmp_path):
    write(tmp_path, "train.py", "results/runs/x/y", "results/other")
    found = listed(tmp_path, is_git=False, runs=tmp_path / "results" / "runs")
    assert found.beside == ()


@pytest.mark.parametrize("is_git", [True, False])
def test_the_projects_own_list_excludes_more(repository, is_git):
    write(repository, "huge.bin", "assets/a.png", "assets/deep/b.png", "src/assets/c.txt")
    (repository / ".echelonignore").write_text("# not needed\n\n*.bin\n/assets/\nold.py\n")
    found = listed(repository, is_git=is_git)
    assert {"huge.bin", "assets", "old.py"} <= set(found.beside)
    assert "src/assets/c.txt" in found.code
    assert not {"huge.bin", "old.py", "assets/a.png"} & set(found.code)


def test_an_exception_in_the_projects_list_is_an_error(tmp_path):
    write(tmp_path, "train.py")
    (tmp_path / ".echelonignore").write_text("*.bin\n!keep.bin\n")
    with pytest.raises(UsageError, match=r"'!keep\.bin'"):
        listed(tmp_path, is_git=False)


@pytest.mark.parametrize(
    ("line", "matches", "others"),
    [
        ("*.bin", ["a.bin", "x/y.bin"], ["a.bin.py", "bin"]),
        ("data/", ["data/x", "a/data/x/y"], ["data", "mydata/x"]),
        ("/data", ["data", "data/x"], ["a/data"]),
        ("a/b", ["a/b", "a/b/c"], ["x/a/b"]),
        ("a/**/z", ["a/z", "a/b/c/z"], ["az"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a"]),
        ("x?[0-9].py", ["xy1.py", "d/xz2.py"], ["x1.py", "x/1.py"]),
        ("[!a].py", ["b.py"], ["a.py"]),
        ("a+b(c).py", ["a+b(c).py"], ["aab(c).py"]),
    ],
)
def test_patterns_mean_what_they_mean_to_git(line, matches, others):
    pattern = parse_ignore(line)
    assert all(pattern.fullmatch(path) for path in matches)
    assert not any(pattern.fullmatch(path) for path in others)


def test_folders_without_code_are_one_entry():
    code = ["a/b.py", "c.py"]
    others = ["a/x.so", "a/data/1", "a/data/2", "d/e/f", "g/", "h"]
    assert find_topmost(code, others) == ["a/x.so", "a/data", "d", "g", "h"]
    assert find_runs(["r/spec.toml", "r/job.sbatch", "q/spec.toml", "job.sbatch"]) == ("r/",)


def test_the_project_is_the_repository_around_the_script(repository, tmp_path):
    shell, scripts = LocalShell(), repository / "src"
    assert find_root(repository, repository / "train.py", shell) == (repository, Kind.GIT)
    assert find_root(scripts, None, shell) == (repository, Kind.GIT)
    assert find_root(tmp_path, scripts / "x.py", shell) == (repository, Kind.GIT)
    plain = tmp_path / "plain"
    plain.mkdir()
    assert find_root(plain, plain / "x.py", shell) == (plain, Kind.FOLDER)
    # A script from elsewhere belongs to where it is, not to the working directory.
    assert find_root(repository, plain / "x.py", shell) == (plain, Kind.FOLDER)


def test_git_that_refuses_is_an_error(repository):
    (repository / ".git" / "config").write_text("[broken\n")
    with pytest.raises(UsageError, match="git cannot read the repository"):
        find_root(repository, None, LocalShell())


def test_the_commit_and_whether_files_differ(repository):
    shell, runs = LocalShell(), repository / "runs"
    write(repository, "runs/a/x")
    clean = read_commit(repository, shell, kind=Kind.GIT, runs=runs)
    assert (len(clean.commit), clean.branch, clean.dirty) == (40, "main", False)
    write(repository, "new.py")
    assert read_commit(repository, shell, kind=Kind.GIT, runs=runs).dirty
    lines = ["# branch.oid (initial)", "# branch.head (detached)"]
    assert parse_commit(lines) == Commit()


@pytest.mark.parametrize("is_git", [True, False])
def test_secrets_of_a_home_directory_are_never_code(repository, is_git):
    for path in (".ssh/id_ed25519", ".bash_history", "sub/.aws/credentials", "sub/own.py"):
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text("x")
    kind = Kind.GIT if is_git else Kind.FOLDER
    listed = list_project(repository, LocalShell(), kind=kind, runs=repository / "runs")
    assert "sub/own.py" in listed.code
    assert not [path for path in listed.code if ".ssh" in path or ".aws" in path or "hist" in path]


def test_without_git_it_is_the_scripts_folder_wherever_one_stands(tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    assert find_root(tmp_path, script, LocalShell()) == (tmp_path / "scripts", Kind.FOLDER)
    assert find_root(tmp_path, None, LocalShell()) == (tmp_path, Kind.FOLDER)
