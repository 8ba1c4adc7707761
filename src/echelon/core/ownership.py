"""Whether other users could replace a file.

A file is as trustworthy as the weakest folder on its path: a user who can write to one of them can
rename an entry and put another file in its place.
"""

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from echelon.core.frozen import frozen

_ROOT = 0
_ACLS = ("system.posix_acl_access", "system.nfs4_acl")
"""Attributes with permissions beyond the mode; the group bits may then apply to other users."""
_MOST_LINKS = 40
"""The kernel's own limit."""


@frozen
class User:
    """The user on whose behalf a file is read."""

    uid: int
    private_gid: int | None
    """The group that only this user is in; Debian and Red Hat create one for each user."""


def current_user() -> User:
    """Return the user that this process acts for."""
    uid = os.geteuid()
    return User(uid=uid, private_gid=_find_private_group(uid))


def _find_private_group(uid: int) -> int | None:
    try:
        account = pwd.getpwuid(uid)
        group = grp.getgrgid(account.pw_gid)
    except KeyError:  # the uid has no account
        return None
    alone = group.gr_name == account.pw_name and set(group.gr_mem) <= {account.pw_name}
    return group.gr_gid if alone else None


def find_intruder(path: Path, user: User | None = None) -> str:
    """Return why another user could replace what is at `path`; empty if none could.

    Args:
        path: a file or folder; if it does not exist, its parents are checked.
        user: the user to check for; root is trusted too.
    """
    user = user or current_user()
    path = path.absolute()
    for step, entry in _walk(path):
        if entry is None:
            return ""
        # In a user namespace, the owner of / is the uid that root outside is mapped to, not 0.
        root_uid = Path("/").stat().st_uid if stat.S_ISDIR(entry.st_mode) else _ROOT
        if entry.st_uid not in (user.uid, _ROOT, root_uid):
            return f"{step} belongs to {_name(entry.st_uid)}"
        if stat.S_ISLNK(entry.st_mode):
            continue
        # In a sticky folder, users cannot rename the entries of others.
        sticky = stat.S_ISDIR(entry.st_mode) and entry.st_mode & stat.S_ISVTX and step != path
        if not sticky and (who := find_writers(step, entry, user)):
            return f"{who} can write to {step}"
    return ""


def find_foreign_owner(path: Path) -> str:
    """Return who else owns a file or a link to it; empty if nobody, or if it does not exist.

    For a file in a folder that others could write to earlier, and cannot any more.
    """
    for follow in (False, True):
        with contextlib.suppress(FileNotFoundError):
            uid = path.stat(follow_symlinks=follow).st_uid
            if uid not in (os.geteuid(), _ROOT):
                return f"{path} belongs to {_name(uid)}"
    return ""


def find_writers(path: Path, entry: os.stat_result, user: User) -> str:
    """Return who besides the user may write to an entry; empty if nobody."""
    if entry.st_mode & stat.S_IWOTH:
        return "everybody"
    if not entry.st_mode & stat.S_IWGRP:
        return ""
    if entry.st_gid in (user.private_gid, _ROOT) and not _has_acl(path):
        return ""
    return f"the group {_group_name(entry.st_gid)}"


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Yield every entry on the way to a path, the root first, and follow links."""
    waiting = list(reversed(path.parts))
    here, links = Path(waiting.pop()), 0
    yield here, here.lstat()
    while waiting:
        name = waiting.pop()
        if name == "..":
            here = here.parent
            continue
        step = here / name
        try:
            entry = step.lstat()
        except OSError:
            yield step, None
            return
        yield step, entry
        if not stat.S_ISLNK(entry.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            yield step, None
            return
        target = step.readlink()
        if target.is_absolute():
            here = Path("/")
        waiting += reversed([part for part in target.parts if part != "/"])


def _has_acl(path: Path) -> bool:
    if not hasattr(os, "listxattr"):
        return False  # on macOS, the group's bit is the group's with an ACL too
    try:
        return any(name in _ACLS for name in os.listxattr(path))
    except OSError:
        return False


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
