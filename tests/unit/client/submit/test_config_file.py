"""The search for the project file, and the owners whose files are trusted."""

import os
import tempfile
from pathlib import Path

import pytest

from echelon.cli import main
from echelon.client.submit.config_file import list_places
from echelon.client.submit.requests import read_request
from echelon.core.records import UnreadableError
from echelon.errors import NotPermittedError, UsageError
from requirements import do_without, require_root

STRANGER = 12002
DEEP = "x = " + "[" * 100_000


@pytest.fixture
def tree(tmp_path):
    """Three folders in each other; the upper one ends the search."""
    (tmp_path / "top" / ".git").mkdir(parents=True)
    below = tmp_path / "top" / "middle" / "below"
    below.mkdir(parents=True)
    return tmp_path / "top"


@pytest.fixture
def below(tree):
    return tree / "middle" / "below"


def give_away(path):
    require_root("to give files to another user")
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def read(folder, **flags):
    return read_request(flags, folder, {"HOME": str(folder / "home")})


# --- where the search ends ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_search_ends_at_the_repository(tmp_path, kind):
    root = tmp_path / "repo"
    (root / "a" / "b").mkdir(parents=True)
    (root / ".git").mkdir() if kind == "folder" else (root / ".git").write_text("gitdir: x\n")
    assert list_places(root / "a" / "b", "") == [root / "a" / "b", root / "a", root]
    assert list_places(root, "") == [root]


def test_the_search_ends_at_the_home_folder_even_if_it_is_named_by_a_link(tmp_path):
    home = tmp_path / "home"
    (home / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    for name in ("home", "link"):
        assert list_places(home / "a", str(tmp_path / name)) == [home / "a", home]


def test_the_search_ends_at_a_mount_point():
    shm = Path("/dev/shm")  # noqa: S108
    if not shm.is_dir() or shm.stat().st_dev == shm.parent.stat().st_dev:
        do_without("needs a mount at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        assert list_places(Path(folder), "") == [Path(folder), shm]


def test_the_search_ends_at_the_root_folder(tmp_path):
    assert list_places(Path("/"), str(tmp_path / "missing")) == [Path("/")]


def test_a_project_file_above_the_repository_is_not_found(tree, below):
    (tree.parent / "echelon.toml").write_text("gpus = 4\n")
    assert read(below).spec.gpus == 0
    (tree / "echelon.toml").write_text("gpus = 2\n")
    assert read(below).spec.gpus == 2


# --- whose files count --------------------------------------------------------------------------


def test_a_project_file_of_another_user_in_a_parent_folder_is_ignored_with_a_warning(
    tree, below, capsys
):
    theirs = tree / "middle" / "echelon.toml"
    theirs.write_text("gpus = 4\n")
    give_away(theirs)
    (tree / "echelon.toml").write_text("gpus = 2\n")
    merged = read(below)
    assert merged.spec.gpus == 2
    assert merged.origins["gpus"] == str(tree / "echelon.toml")
    assert capsys.readouterr().err == (
        f"warning: ignored {theirs}: {theirs} belongs to user {STRANGER}; "
        f"to use it: --config {theirs}\n"
    )


def test_a_project_file_of_another_user_in_the_working_folder_is_an_error(below):
    theirs = below / "echelon.toml"
    theirs.write_text("gpus = 4\n")
    give_away(theirs)
    with pytest.raises(NotPermittedError) as caught:
        read(below)
    assert caught.value.message == (f"{theirs} is not trusted: {theirs} belongs to user {STRANGER}")
    assert caught.value.hint == "if you trust its content, add: --config echelon.toml"
    assert read(below, config=Path("echelon.toml")).spec.gpus == 4


def test_a_project_file_that_was_fetched_from_a_host_is_not_used(tree, below, capsys):
    (tree / "middle/.echelon-run").write_text("train-abcd\n")
    (tree / "middle/echelon.toml").write_text("gpus = 4\n")
    assert read(below).spec.gpus == 0
    assert "it was fetched from another host; to use it: --config" in capsys.readouterr().err
    with pytest.raises(NotPermittedError, match="it was fetched from another host"):
        read(tree / "middle")


def test_a_group_writable_folder_is_an_error_with_the_chmod_command_that_fixes_it(below):
    require_root("to give a folder to a shared group")
    (below / "echelon.toml").write_text("gpus = 4\n")
    os.chown(below, -1, STRANGER)
    below.chmod(0o775)
    with pytest.raises(NotPermittedError) as caught:
        read(below)
    assert f"the group {STRANGER} can write to {below}" in caught.value.message
    command, _, rest = caught.value.hint.partition(", or ")
    assert command == f"chmod go-w {below}"
    assert rest.endswith("add: --config echelon.toml")
    assert os.waitstatus_to_exitcode(os.system(command)) == 0  # noqa: S605
    assert read(below).spec.gpus == 4


def test_a_pyproject_of_another_user_matters_only_with_our_table(below, capsys):
    theirs = below.parent / "pyproject.toml"
    theirs.write_text(f"[tool.ruff]\n{DEEP}")
    give_away(theirs)
    assert read(below).spec.gpus == 0
    assert capsys.readouterr().err == ""
    # It is not valid TOML, but it is not parsed.
    theirs.write_text(f"{DEEP}\n [ tool.echelon ]\ngpus = 4\n")
    assert read(below).spec.gpus == 0
    assert f"warning: ignored {theirs}: " in capsys.readouterr().err
    with pytest.raises(NotPermittedError, match="is not trusted"):
        read(below.parent)


@pytest.mark.parametrize("name", ["echelon.toml", "pyproject.toml"])
@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_pipe_in_place_of_a_project_file_does_not_block(below, name, whose):
    pipe = below.parent / name
    os.mkfifo(pipe)
    if whose == "theirs":
        give_away(pipe)
    assert read(below).spec.gpus == 0


@pytest.mark.parametrize("name", ["echelon.toml", "pyproject.toml"])
def test_a_project_file_that_is_a_link_of_another_user_is_not_read(below, name, tmp_path):
    target = tmp_path / "mine.toml"
    target.write_text("[tool.echelon]\ngpus = 4\n" if name == "pyproject.toml" else "gpus = 4\n")
    link = below.parent / name
    link.symlink_to(target)
    assert read(below).spec.gpus == 4
    give_away(link)
    assert read(below).spec.gpus == 0


def test_user_settings_that_others_can_write_are_an_error(below):
    own = below / "home/.config/echelon"
    own.mkdir(parents=True)
    (own / "config.toml").write_text('notify = "true"\n')
    assert read(below).spec.notify == "true"
    own.chmod(0o777)
    with pytest.raises(NotPermittedError) as caught:
        read(below)
    assert caught.value.message.endswith(f"is not trusted: everybody can write to {own}")
    assert caught.value.hint == f"chmod go-w {own}"
    own.chmod(0o755)
    give_away(own)
    with pytest.raises(NotPermittedError) as caught:
        read(below, config=Path(os.devnull))
    assert "XDG_CONFIG_HOME" in caught.value.hint


# --- --config -----------------------------------------------------------------------------------


def test_a_named_config_file_replaces_the_search(below, tmp_path):
    (below / "echelon.toml").write_text("gpus = 4\nnodes = 2\n")
    other = tmp_path / "other.toml"
    other.write_text("gpus = 2\n")
    merged = read(below, config=other)
    assert (merged.spec.gpus, str(merged.spec.nodes)) == (2, "1")
    assert merged.origins["gpus"] == str(other)
    assert read(below, config=Path(os.devnull)).spec.gpus == 0


def test_config_accepts_a_pyproject(below):
    (below / "pyproject.toml").write_text("[tool.echelon]\ngpus = 2\n")
    assert read(below, config=Path("pyproject.toml")).spec.gpus == 2


def test_a_variable_names_the_config_file_of_all_commands(below, monkeypatch, capsys):
    (below / "mine.toml").write_text("gpus = 2\n")
    monkeypatch.chdir(below)
    monkeypatch.setenv("ECHELON_CONFIG", "mine.toml")
    assert main.run(["config"]) == 0
    assert f" {below / 'mine.toml'}\n" in capsys.readouterr().out


def test_a_huge_project_file_is_not_read_into_memory(below):
    path = below / "echelon.toml"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(UnreadableError, match="larger than"):
        read(below)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.toml", None, "does not exist"),
        (".", None, "is not a file"),
        ("pyproject.toml", "[tool.ruff]\n", "has no table [tool.echelon]"),
        ("deep.toml", DEEP, "nested too deeply"),
        ("long.toml", f"nodes = {'9' * 5000}\n", "is not valid TOML"),
    ],
)
def test_the_error_of_an_invalid_project_file_names_the_file(below, name, text, message):
    if text is not None:
        (below / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read(below, config=Path(name))
    assert str(below) in caught.value.message
    assert message in caught.value.message
    assert caught.value.hint
