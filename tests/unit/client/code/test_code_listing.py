"""Which files belong to a project: with git, without it, and with `.echelonignore`."""

import os
import subprocess

import pytest

from echelon.client.code.code_listing import (
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
    # git also lists deleted files; they are left out when the files are copied.
    assert set(found.code) == {
        *(".gitignore", "train.py", "new.py", "ünï code.py", "src/pkg/__init__.py", "old.py"),
    }
    assert set(found.beside) == {"data", "photos", "src/pkg/ext.so"}


def test_run_directories_are_never_code(repository):
    write(repository, "runs/a-1/spec.toml", "runs/a-1/job.sbatch", "runs/a-1/code/train.py")
    write(repository, "sub/runs/b-2/spec.toml", "sub/runs/b-2/job.sbatch", "sub/runs/b-2/big")
    found = listed(repository)
    assert not [path for path in (*found.code, *found.beside) if "runs" in path]


def test_submodules_and_nested_repositories_are_part_of_the_code(repository, tmp_path):
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
def test_echelonignore_excludes_more_files(repository, is_git):
    write(repository, "huge.bin", "assets/a.png", "assets/deep/b.png", "src/assets/c.txt")
    (repository / ".echelonignore").write_text("# not needed\n\n*.bin\n/assets/\nold.py\n")
    found = listed(repository, is_git=is_git)
    assert {"huge.bin", "assets", "old.py"} <= set(found.beside)
    assert "src/assets/c.txt" in found.code
    assert not {"huge.bin", "old.py", "assets/a.png"} & set(found.code)


def test_an_exception_in_echelonignore_is_an_error(tmp_path):
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
def test_patterns_in_echelonignore_match_as_in_git(line, matches, others):
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


def test_a_repository_that_git_refuses_is_an_error(repository):
    (repository / ".git" / "config").write_text("[broken\n")
    with pytest.raises(UsageError, match="git cannot read the repository"):
        find_root(repository, None, LocalShell())


def test_the_commit_is_read_and_dirty_if_files_differ(repository):
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


def test_without_git_the_project_is_the_scripts_folder(tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    assert find_root(tmp_path, script, LocalShell()) == (tmp_path / "scripts", Kind.FOLDER)
    assert find_root(tmp_path, None, LocalShell()) == (tmp_path, Kind.FOLDER)


@pytest.mark.parametrize("is_git", [True, False])
def test_secrets_of_tools_are_never_code(repository, is_git):
    secrets = [".npmrc", "sub/.huggingface/token", ".cargo/credentials.toml", ".oci/config"]
    secrets += ["keys/id_ed25519", "_netrc", ".dockercfg", ".streamlit/secrets.toml", ".zhistory"]
    secrets += [".Renviron", ".terraform.d/credentials.tfrc.json", ".env", "sub/.env.local"]
    secrets += [".authinfo", ".condarc", ".pip/pip.conf", "home/.m2/settings.xml", ".wgetrc"]
    secrets += [".gradle/gradle.properties", ".gem/credentials", ".snowsql/config", ".curlrc"]
    secrets += [".dbt/profiles.yml", "rclone.conf", ".SentryCLIrc", ".smbcredentials", ".msmtprc"]
    secrets += [".ssh/.env.example"]
    public = {".cargo/config.toml", ".env.example", "env.py", "keys/id_ed25519.pub", "id_rsa.py"}
    public |= {"pip.conf", "profiles.yml", "settings.xml", "a/gradle.properties"}
    write(repository, *secrets, *public)
    code = set(listed(repository, is_git=is_git).code)
    assert public <= code
    assert not code & set(secrets)


@pytest.mark.parametrize("is_git", [True, False])
def test_private_keys_are_never_code_and_certificates_are(repository, is_git):
    begin = "-----BEGIN {}-----\nMIIE\n"
    write(repository, "certs/ca.pem", "own.key", "tls/server.KEY", "both.pem", "ec.pem")
    (repository / "certs/ca.pem").write_text(begin.format("CERTIFICATE"))
    (repository / "own.key").write_text("arrow up")
    (repository / "tls/server.KEY").write_text(begin.format("PRIVATE KEY"))
    (repository / "ec.pem").write_text(begin.format("EC PRIVATE KEY"))
    text = begin.format("CERTIFICATE") + begin.format("ENCRYPTED PRIVATE KEY")
    (repository / "both.pem").write_text(text)
    (repository / "link.pem").symlink_to("tls/server.KEY")
    code = set(listed(repository, is_git=is_git).code)
    assert {"certs/ca.pem", "own.key", "link.pem"} <= code
    assert code.isdisjoint({"tls/server.KEY", "both.pem", "ec.pem"})


# --- repositories of other users --------------------------------------------------------------


@pytest.fixture
def marker(tmp_path):
    """A program that leaves a mark."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/executed'\nexit 1\n")
    program.chmod(0o700)
    return program


def make_hostile(root, program, *, complete=True):
    """Make a repository that names a program wherever git may start one to list its files."""
    git(root, "init", "-q")
    write(root, "seen/a.py", "seen/.gitignore", "hidden/b.py", "changed.txt", "own.py")
    (root / ".gitattributes").write_text("*.txt filter=own\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    tree = git_says(root, "rev-parse", "HEAD:hidden")
    blob = git_says(root, "rev-parse", "HEAD:seen/.gitignore")
    git(root, "sparse-checkout", "set", "--cone", "--sparse-index", "seen")
    (root / "seen/.gitignore").unlink()
    git(root, "update-index", "--skip-worktree", "seen/.gitignore")
    for missing in () if complete else (tree, blob):
        (root / ".git/objects" / missing[:2] / missing[2:]).unlink()
    (root / ".git/hooks/post-index-change").symlink_to(program)
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(root / ".git"),
        "remote.origin.uploadpack": f"{program} #",
        "protocol.file.allow": "always",
        "core.fsmonitor": str(program),
        "core.sshCommand": str(program),
        "filter.own.clean": str(program),
        "filter.own.process": str(program),
        "core.alternateRefsCommand": str(program),
        "status.submoduleSummary": "true",
    }.items():
        git(root, "config", name, value)
    (root / "changed.txt").write_text("of one size\n")  # git compares the content


def git_says(root, *words):
    return subprocess.check_output(["git", "-C", root, *words], text=True).strip()


def list_all(root):
    shell, runs = LocalShell(), root / "runs"
    found, kind = find_root(root, None, shell)
    listing = list_project(found, shell, kind=kind, runs=runs)
    return listing, read_commit(found, shell, kind=kind, runs=runs)


def test_nothing_that_a_nested_repository_names_is_executed(repository, marker, tmp_path):
    (repository / "logs").mkdir()
    make_hostile(repository / "logs", marker, complete=False)
    listing, _ = list_all(repository)
    assert "logs/seen/a.py" in listing.code
    assert not (tmp_path / "executed").exists()
    git_says(repository / "logs", "ls-files")  # plain git does execute it
    assert (tmp_path / "executed").exists()


def test_nothing_that_a_submodule_or_the_project_names_is_executed(repository, marker, tmp_path):
    (repository / "sub").mkdir()
    make_hostile(repository / "sub", marker)
    git(repository, "add", "sub")
    git(repository, "commit", "-qm", "sub")
    (tmp_path / "executed").unlink(missing_ok=True)
    assert list_all(repository)[1].dirty
    (tmp_path / "own").mkdir()
    make_hostile(tmp_path / "own", marker)
    (tmp_path / "executed").unlink(missing_ok=True)
    assert list_all(tmp_path / "own")[1].dirty
    assert not (tmp_path / "executed").exists()


def test_a_change_in_a_submodule_makes_the_project_dirty(repository, tmp_path):
    git(repository, "init", "-q", "sub")
    write(repository, "sub/lib.py")
    git(repository / "sub", "add", ".")
    git(repository / "sub", "commit", "-qm", "lib")
    git(repository, "add", "sub")
    git(repository, "commit", "-qm", "sub")
    assert not list_all(repository)[1].dirty
    (repository / "sub/lib.py").write_text("changed\n")
    assert list_all(repository)[1].dirty


@pytest.mark.parametrize("name", [b"a=b", b"a\xffb"])
def test_a_git_filter_that_cannot_be_disabled_is_an_error(repository, marker, tmp_path, name):
    (repository / ".gitattributes").write_bytes(b"*.py filter=%s\n" % name)
    with (repository / ".git/config").open("ab") as config:
        config.write(b'[filter "%s"]\n\tclean = %s\n' % (name, os.fsencode(marker)))
    (repository / "train.py").write_text("changed\n")
    with pytest.raises(UsageError, match=r"'filter\.a.b\.clean', which cannot be turned off"):
        list_all(repository)
    assert not (tmp_path / "executed").exists()


def add_submodule(root, *paths):
    commit = git_says(root, "rev-parse", "HEAD")
    for path in paths:
        git(root, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")


def test_links_to_repositories_are_not_followed(repository, tmp_path):
    add_submodule(repository, "a", "b", "c")
    write(tmp_path / "other", "secret.py")
    git(tmp_path / "other", "init", "-q")
    (repository / "c").symlink_to(tmp_path / "other")
    for name, other in ("ab", "ba"):  # two paths at each level, without end
        (repository / name).mkdir()
        (repository / name / ".git").write_text("gitdir: ../.git\n")
        (repository / name / name).symlink_to(".")
        (repository / name / other).symlink_to(f"../{other}")
    listing, commit = list_all(repository)
    assert commit.dirty
    assert "a/train.py" in listing.code
    assert not [path for path in listing.code if "secret" in path or path.count("/") > 4]


def test_a_submodule_without_its_repository_is_an_error(repository):
    add_submodule(repository, "sub")
    (repository / "sub/.git").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"project/sub: .*not a git repository"):
        list_all(repository)


def test_a_repository_cannot_name_a_folder_around_it(tmp_path):
    write(tmp_path, "secret.txt", "evil/train.py")
    git(tmp_path / "evil", "init", "-q")
    git(tmp_path / "evil", "config", "core.worktree", str(tmp_path))
    assert find_root(tmp_path / "evil", None, LocalShell())[0] == tmp_path / "evil"
    assert list_all(tmp_path / "evil")[0].code == ("train.py",)


def test_a_fetched_folder_is_not_code(repository):
    write(repository, "train-abcd/.echelon-run", "train-abcd/metrics.jsonl", "a/train-efgh/x.py")
    git(repository, "init", "-q", "train-abcd/logs")
    assert not [path for path in listed(repository).code if path.startswith("train-abcd")]
    assert not [path for path in listed(repository, is_git=False).code if "abcd" in path]
