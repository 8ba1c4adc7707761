"""Hostile folders, and hostile paths in manifests: the walk, and everything that uses it."""

import contextlib
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from byte_streams import exchange, talk
from echelon.client.code.code_listing import Kind, list_project
from echelon.client.code.tree import Tree
from echelon.client.manage.cleaning import measure
from echelon.client.remote.fetching import list_files, receive_files
from echelon.core.files import BlockedError, check_paths, for_all, is_inner, walk
from echelon.core.jobs import Job
from echelon.core.shell import LocalShell
from echelon.errors import NotPermittedError, UsageError
from echelon.launch.stage.manifest import FILE, decode_manifest, describe_folder
from echelon.run.code import Code, read_manifest, verify_code
from echelon.run.directory import RunDir
from echelon.run.history import has_written
from requirements import require_root

STRANGER = 12002


# --- paths that others name -------------------------------------------------------------------

HOSTILE_PATHS = [
    *("..", "../x", "/etc/x", "a/../x", "a/../../x", "a/..", "", ".", "./a", "a//b", "a/"),
    *("a\0b", "x" * 256, "x/" * 2048 + "x", "\ud800"),
]
ODD_NAMES = ["a b", "-rf", "a\nb", "a'; echo b", "$(b)", "a\\b", "*", "…", "\udcff", "x" * 255]


def read_code_manifest(paths, folder):
    run = RunDir.create(folder, "a-1")
    files = {path: ["0" * 64, False, 1, None] for path in paths}
    run.manifest.write_text(json.dumps({"files": files, "links": {}}))
    read_manifest(run)


def read_code_links(paths, folder):
    run = RunDir.create(folder, "a-1")
    links = dict.fromkeys(paths, "target")
    run.manifest.write_text(json.dumps({"files": {}, "links": links}))
    read_manifest(run)


def read_stage_manifest(paths, _folder):
    folders = {str(Path(path).parent) for path in paths} - {".", *paths}
    entries = [[path, "d", 0, 0, 0, ""] for path in folders]
    entries += [[path, "f", 0, 0, 0, ""] for path in paths]
    decode_manifest(json.dumps(entries).encode())


def read_fetched_listing(paths, folder):
    files = {path: [1, 1, False] for path in paths}
    message = json.dumps({"files": files}).encode() + b"\n"
    done = exchange(lambda stream: receive_files(folder / "here", ["*"], stream), talk(message))
    if isinstance(done.laptop, NotPermittedError):
        assert not (folder / "here").exists()
        raise done.laptop


MANIFESTS = [read_code_manifest, read_code_links, read_stage_manifest, read_fetched_listing]


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=range(len(HOSTILE_PATHS)))
@pytest.mark.parametrize("read", [lambda paths, _folder: check_paths(paths), *MANIFESTS])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, read, path):
    with pytest.raises((NotPermittedError, ValueError)):
        read([path], tmp_path)
    assert list(tmp_path.rglob("x")) == []


@pytest.mark.parametrize("read", [lambda paths, _folder: check_paths(paths), *MANIFESTS])
def test_a_path_through_a_file_is_refused(tmp_path, read):
    with pytest.raises((NotPermittedError, ValueError)):
        read(["a/b", "a"], tmp_path)


@pytest.mark.parametrize("read", [lambda paths, _folder: check_paths(paths), *MANIFESTS])
def test_odd_names_are_paths(tmp_path, read):
    read([name for name in ODD_NAMES if name != "*"], tmp_path)


def test_a_path_is_listed_once():
    with pytest.raises(NotPermittedError, match="refused the path 'a'"):
        check_paths(["a", "a"])
    with pytest.raises(NotPermittedError, match="refused the path 'a'"):
        check_paths(["a"], ["a"])


@pytest.mark.parametrize("value", [None, 7, ["a"], {"a": 1}, b"a"])
def test_what_is_no_text_is_no_path(value):
    assert not is_inner(value)
    with pytest.raises(NotPermittedError):
        check_paths([value])


# --- what is in a folder ----------------------------------------------------------------------


def walk_files(root):
    return {entry.path for entry in walk(root) if entry.is_file}


def list_staged(root):
    return {entry.path for entry in describe_folder(root).entries if entry.kind == FILE}


def list_fetched(root):
    return set(list_files(root, ["*"]))


def only_files(root, paths):
    return {path for path in paths if stat.S_ISREG((root / path).lstat().st_mode)}


def list_code(root):
    listing = list_project(root, LocalShell(), kind=Kind.FOLDER, runs=root / "runs")
    return only_files(root, listing.code)


def list_tree(root):
    with Tree(root) as tree:
        paths = tree.list_below("top")
    return only_files(root, paths)


USERS = [walk_files, list_staged, list_fetched, list_code, list_tree]


@pytest.fixture
def outside(tmp_path):
    """What nothing may see."""
    folder = tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "secret").write_text("secret\n")
    (folder / "sub" / "secret").write_text("secret\n")
    return folder


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "top" / "sub").mkdir(parents=True)
    for path in ("top/a", "top/sub/b"):
        (folder / path).write_text("text\n")
    return folder


def add_link(path, outside):
    path.symlink_to(outside)


def add_link_to_file(path, outside):
    path.symlink_to(outside / "secret")


def add_relative_link(path, outside):
    path.symlink_to(os.path.relpath(outside, path.parent))


def add_loop(path, _outside):
    path.symlink_to(".")


def add_dangling_link(path, _outside):
    path.symlink_to("nothing")


def add_pipe(path, _outside):
    os.mkfifo(path)


def add_socket(path, _outside):
    """By a short relative path: names of sockets are limited."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


KINDS = [
    *(add_link, add_link_to_file, add_relative_link, add_loop, add_dangling_link),
    *(add_pipe, add_socket),
]


@pytest.mark.parametrize("add", KINDS)
@pytest.mark.parametrize("list_paths", USERS)
def test_links_pipes_and_sockets_are_not_followed_or_read(root, outside, list_paths, add):
    add(root / "top" / "evil", outside)
    assert list_paths(root) == {"top/a", "top/sub/b"}


@pytest.mark.parametrize("list_paths", USERS)
def test_odd_names_are_listed(root, list_paths):
    for name in ODD_NAMES:
        (root / "top" / "sub" / name).touch()
    assert list_paths(root) == {"top/a", "top/sub/b", *(f"top/sub/{name}" for name in ODD_NAMES)}


@pytest.mark.parametrize("list_paths", USERS)
def test_folders_with_odd_names_are_listed(root, list_paths):
    for name in ODD_NAMES:
        (root / "top" / name).mkdir()
        (root / "top" / name / "c").touch()
    assert list_paths(root) == {"top/a", "top/sub/b", *(f"top/{name}/c" for name in ODD_NAMES)}


@pytest.mark.parametrize("list_paths", USERS)
def test_a_hard_link_is_a_file(root, outside, list_paths):
    os.link(outside / "secret", root / "top" / "linked")
    assert list_paths(root) == {"top/a", "top/sub/b", "top/linked"}


@pytest.mark.parametrize("list_paths", USERS)
def test_a_deep_folder_is_listed(root, list_paths):
    deep = root / "top" / "/".join("d" * 100)
    deep.mkdir(parents=True)
    (deep / "c").touch()
    assert len(list_paths(root)) == 3


@pytest.mark.parametrize("list_paths", USERS)
def test_the_root_may_be_a_link(root, tmp_path, list_paths):
    (tmp_path / "alias").symlink_to(root)
    assert list_paths(tmp_path / "alias") == {"top/a", "top/sub/b"}


# --- what changes meanwhile -------------------------------------------------------------------


@contextlib.contextmanager
def before_next_folder(change):
    """Do something once a folder was read that has another one in it."""
    original = os.scandir

    @contextlib.contextmanager
    def scan(folder):
        with original(folder) as items:
            found = list(items)
            yield iter(found)
        if "sub" in [item.name for item in found]:
            change()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        yield


def replace_by_link(folder, outside):
    folder.rename(folder.parent.parent / "aside")
    folder.symlink_to(outside)


def replace_by_pipe(folder, _outside):
    folder.rename(folder.parent.parent / "aside")
    os.mkfifo(folder)


def remove(folder, _outside):
    folder.rename(folder.parent.parent / "aside")


@pytest.mark.parametrize("change", [replace_by_link, replace_by_pipe, remove])
@pytest.mark.parametrize("path", ["top", "top/sub"])
@pytest.mark.parametrize("list_paths", [walk_files, list_staged, list_fetched])
def test_a_folder_that_is_replaced_before_it_is_read_is_left_out(
    root, outside, list_paths, change, path
):
    """It, or the folder around it."""
    with before_next_folder(lambda: change(root / path, outside)):
        assert list_paths(root) == {"top/a"}


@pytest.mark.parametrize("change", [replace_by_link, replace_by_pipe, remove])
@pytest.mark.parametrize("path", ["top", "top/sub"])
def test_a_replaced_folder_of_a_project_is_left_out(root, outside, change, path):
    with before_next_folder(lambda: change(root / path, outside)):
        listing = list_project(root, LocalShell(), kind=Kind.FOLDER, runs=root / "runs")
    assert listing.code == ("top/a",)


def test_a_file_that_vanishes_is_left_out(root):
    (root / "top" / "sub" / "link").symlink_to("b")
    original = os.scandir

    @contextlib.contextmanager
    def scan_and_remove(folder):
        with original(folder) as items:
            found = list(items)
            for name in ("b", "link"):
                if name in [item.name for item in found]:
                    (root / "top" / "sub" / name).unlink()
            yield iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scan_and_remove)
        assert {entry.path for entry in walk(root)} == {"top", "top/sub", "top/a"}


def test_folders_are_yielded_before_what_is_in_them(root):
    assert next(walk(root)).path == "top"
    assert [entry.path for entry in walk(root, enter=lambda _one: False)] == ["top"]
    assert {entry.path for entry in walk(root, "top/sub")} == {"top/sub/b"}


def test_entries_are_described(root):
    (root / "link").symlink_to("top/a")
    (root / "top" / "a").chmod(0o755)
    found = {entry.path: entry for entry in walk(root)}
    assert found["link"].target == "top/a"
    assert found["link"].is_link
    assert found["top"].is_folder
    assert found["top/a"].is_executable
    assert not found["top/sub/b"].is_executable
    assert found["top/sub/b"].name == "b"
    assert found["top/sub/b"].stamp.size == 5
    with Tree(root) as tree:
        for path, entry in found.items():
            assert tree.examine(path).target == entry.target
            assert tree.examine(path).stamp == entry.stamp
        assert tree.examine("top/nothing") is None


def test_no_folder_stays_open(root):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        list(walk(root))
        next(walk(root))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# --- other users ------------------------------------------------------------------------------


@pytest.fixture
def locked(root):
    """A folder with one of another user, which this user cannot read."""
    require_root("to act as another user")
    (root / "top" / "locked").mkdir(mode=0o700)
    (root / "top" / "locked" / "secret").touch()
    for place in (root, root / "top", root / "top" / "sub", *list(root.parents)[:-2]):
        place.chmod(0o755)
    os.seteuid(STRANGER)
    yield root
    os.seteuid(0)


@pytest.mark.parametrize("list_paths", [walk_files, list_staged, list_fetched, list_tree])
def test_a_folder_that_cannot_be_read_is_named(locked, list_paths):
    with pytest.raises(PermissionError) as caught:
        list_paths(locked)
    assert caught.value.filename == f"{locked}/top/locked"


def test_a_folder_of_a_project_that_cannot_be_read_is_an_error_with_a_hint(locked):
    with pytest.raises(UsageError, match=f"cannot read {locked}/top/locked: Perm") as caught:
        list_code(locked)
    assert caught.value.hint == f"exclude it: echo '/top/locked' >> {locked}/.echelonignore"


def test_a_folder_that_cannot_be_read_may_be_left_out(locked):
    failed = []
    seen = {entry.path for entry in walk(locked, on_error=failed.append)}
    assert seen == {"top", "top/a", "top/locked", "top/sub", "top/sub/b"}
    assert [error.filename for error in failed] == [f"{locked}/top/locked"]


def test_a_run_with_a_folder_that_cannot_be_read_is_measured(locked):
    found = measure(RunDir(path=locked), Job(id="1", state="COMPLETED"))
    assert found.checkpoints == 10


def test_files_of_a_script_are_found_beside_a_folder_that_cannot_be_read(locked):
    assert has_written(locked / "top", 0, run=RunDir(path=locked / "runs" / "a-1"))
    assert not has_written(locked / "nothing", 0, run=RunDir(path=locked / "runs" / "a-1"))


# --- a run's code -----------------------------------------------------------------------------


@pytest.mark.parametrize("add", KINDS)
@pytest.mark.parametrize("path", ["evil", "a"])
def test_code_with_anything_else_is_refused(tmp_path, outside, add, path):
    run = RunDir.create(tmp_path / "runs", "a-1")
    run.code.mkdir()
    run.manifest.write_text('{"files": {"a": ["", false, 1, null]}, "links": {}}')
    if path == "evil":
        (run.code / "a").touch()
    add(run.code / path, outside)
    what = "was added" if path == "evil" else "is missing or replaced"
    with pytest.raises(NotPermittedError, match=f"{path} {what}"):
        verify_code(run, Code(root="/project", digest=""))


# --- one file of a tree -----------------------------------------------------------------------


def replace(tree, path):
    with tree.replacing(path, ".temporary", mode=0o600) as file:
        file.write(b"mine")


def append(tree, path):
    with tree.append(path) as file:
        file.write(b"mine")


OPERATIONS = [
    Tree.find,
    Tree.examine,
    Tree.open,
    Tree.read_link,
    replace,
    append,
    lambda tree, path: tree.rename(path, "other"),
    lambda tree, path: tree.link(path, "target", ".temporary"),
]


@pytest.mark.parametrize("operate", OPERATIONS)
def test_a_file_behind_a_link_is_not_touched(root, outside, operate):
    (root / "link").symlink_to(outside)
    with Tree(root) as tree, pytest.raises(BlockedError, match="link is not a folder"):
        operate(tree, "link/secret")
    with Tree(root) as tree:
        tree.remove("link/secret")
        tree.remove_empty("link/sub")
    assert (outside / "secret").read_text() == "secret\n"
    assert sorted(os.listdir(outside)) == ["secret", "sub"]  # noqa: PTH208


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=range(len(HOSTILE_PATHS)))
@pytest.mark.parametrize("operate", [*OPERATIONS, Tree.remove])
def test_a_tree_refuses_paths_that_lead_elsewhere(root, operate, path):
    with Tree(root) as tree, pytest.raises(NotPermittedError):
        operate(tree, path)


@pytest.mark.parametrize("add", [add_link_to_file, add_pipe, add_dangling_link])
@pytest.mark.parametrize("operate", [Tree.open, append])
def test_only_regular_files_are_opened(root, outside, operate, add):
    add(root / "evil", outside)
    with (
        Tree(root) as tree,
        pytest.raises(OSError, match=r"not a regular file|symbolic links"),
    ):
        operate(tree, "evil")
    assert (outside / "secret").read_text() == "secret\n"


@pytest.mark.parametrize("add", [add_link, add_link_to_file, add_pipe])
def test_a_link_is_replaced_and_not_written_through(root, outside, add):
    add(root / "evil", outside)
    add(root / ".temporary", outside)
    with Tree(root) as tree:
        replace(tree, "evil")
    assert (root / "evil").read_bytes() == b"mine"
    assert not (root / "evil").is_symlink()
    assert sorted(os.listdir(outside)) == ["secret", "sub"]  # noqa: PTH208
    assert (outside / "secret").read_text() == "secret\n"


# --- slow storage -----------------------------------------------------------------------------


def test_for_all_keeps_the_order_and_raises_the_first_error():
    beats = []
    assert for_all(lambda n: n * n, range(100), lambda: beats.append(1)) == [
        n * n for n in range(100)
    ]
    assert len(beats) == 100
    with pytest.raises(ZeroDivisionError):
        for_all(lambda n: 1 / n, [1, 0, 2])
