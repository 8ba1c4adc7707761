"""Who could replace a file: judged by owners and rights of every folder on the way."""

import os
from pathlib import Path

import pytest

from echelon.core.ownership import User, find_intruder
from requirements import require_root

ME, STRANGER, SHARED = 12001, 12002, 12003
USER = User(uid=ME, private_gid=ME)


@pytest.fixture
def home(tmp_path):
    require_root("to give files to other users")
    folder = tmp_path / "home"
    folder.mkdir()
    for place in (folder, *folder.parents):  # pytest's own folders are for this user alone
        if place.is_relative_to(tmp_path.parent):
            place.chmod(0o755)
    return folder


def put(path: Path, *, uid=ME, gid=ME, mode=0o644, folder=False) -> Path:
    path.mkdir() if folder else path.touch()
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "expected"),
    [
        (ME, ME, 0o644, ""),
        (0, 0, 0o644, ""),
        (ME, ME, 0o664, ""),  # the umask of private groups
        (ME, SHARED, 0o644, ""),
        (ME, SHARED, 0o664, f"the group {SHARED} can write to"),
        (ME, ME, 0o666, "everybody can write to"),
        (STRANGER, STRANGER, 0o600, f"belongs to user {STRANGER}"),
    ],
)
def test_a_file_is_judged_by_its_owner_and_its_writers(home, uid, gid, mode, expected):
    found = find_intruder(put(home / "file", uid=uid, gid=gid, mode=mode), USER)
    assert (
        found.startswith(expected) if expected.startswith(("the", "every")) else (expected in found)
    )
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "safe"),
    [
        (ME, ME, 0o755, True),
        (ME, SHARED, 0o775, False),
        (STRANGER, STRANGER, 0o755, False),
        (0, 0, 0o777, False),
        (0, 0, 0o1777, True),
        (ME, SHARED, 0o3775, True),
        (STRANGER, STRANGER, 0o1777, False),
    ],
)
def test_a_folder_on_the_way_counts_as_well(home, uid, gid, mode, safe):
    folder = put(home / "folder", uid=uid, gid=gid, mode=mode, folder=True)
    assert (not find_intruder(put(folder / "file"), USER)) == safe


def test_a_sticky_folder_is_no_safe_place_for_what_is_not_there_yet(home):
    """Whoever is first makes it."""
    folder = put(home / "folder", uid=0, gid=0, mode=0o1777, folder=True)
    assert find_intruder(folder, USER).startswith("everybody")


def test_links_are_followed_and_judged(home):
    theirs = put(home / "theirs", uid=STRANGER, gid=STRANGER, folder=True, mode=0o755)
    target = put(theirs / "file")
    link = home / "link"
    link.symlink_to(target)
    os.chown(link, ME, ME, follow_symlinks=False)
    assert find_intruder(link, USER) == f"{theirs} belongs to user {STRANGER}"


def test_a_strangers_link_is_a_strangers_choice(home):
    mine = put(home / "mine")
    link = home / "link"
    link.symlink_to(mine)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert find_intruder(link, USER) == f"{link} belongs to user {STRANGER}"


def test_a_circle_of_links_ends(home):
    (home / "a").symlink_to("b")
    (home / "b").symlink_to("a")
    assert find_intruder(home / "a", User(uid=0, private_gid=0)) == ""


def test_rights_beyond_the_mode_make_a_private_group_no_longer_private(home):
    path = put(home / "file", mode=0o664)
    try:
        # One named user (rwx), as `setfacl -m u:12002:rw` writes it.
        entries = [(1, 6, 0xFFFFFFFF), (2, 6, STRANGER), (4, 4, 0xFFFFFFFF)]
        entries += [(16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
        packed = b"".join(
            tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little")
            for tag, perm, who in entries
        )
        os.setxattr(path, "system.posix_acl_access", (2).to_bytes(4, "little") + packed)
    except OSError:
        pytest.skip("this file system has no access control lists")
    assert find_intruder(path, USER) == f"the group {ME} can write to {path}"
