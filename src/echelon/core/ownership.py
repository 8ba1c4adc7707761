"""Who else could put something of theirs in a file's place.

A file is as trustworthy as the weakest folder on the way to it: whoever may write to one of them
can rename what lies there and leave another file under its name.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = 0
_ACLS = ("system.posix_acl_access", "system.nfs4_acl")
"""Where a file system keeps rights beyond the mode; then the group's bits may be somebody's."""
_MOST_LINKS = 40
"""As many as the kernel follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The user on whose behalf a file is read."""

    uid: int
    private_gid: int | None
    """The group that this user alone is in, as Debian and Red Hat give one to each user."""


def current_user() -> User:
    """Return the user that this process acts for."""
    uid = os.geteuid()
    return User(uid=uid, private_gid=_find_private_group(uid))


def _find_private_group(uid: int) -> int | None:
    try:
        account = pwd.getpwuid(uid)
        group = grp.getgrgid(account.pw_gid)
    except KeyError:  # a number without an account
        return None
    alone = group.gr_name == account.pw_name and set(group.gr_mem) <= {account.pw_name}
    return group.gr_gid if alone else None


def find_intruder(path: Path, user: User | None = None) -> str:
    """Return why somebody else could replace what is under `path`; empty where nobody could.

    Args:
        path: a file or folder, which need not exist: then its folders are judged.
        user: on whose behalf; root is trusted besides.
    """
    user = user or current_user()
    path = path.absolute()
    for step, entry in _walk(path):
        if entry is None:
            return ""
        # In a user namespace the owner of / is not 0, but the number that stands for root outside.
        landlord = Path("/").stat().st_uid if stat.S_ISDIR(entry.st_mode) else _ROOT
        if entry.st_uid not in (user.uid, _ROOT, landlord):
            return f"{step} belongs to {_name(entry.st_uid)}"
        if stat.S_ISLNK(entry.st_mode):
            continue
        # In a sticky folder nobody can rename another user's entries.
        sticky = stat.S_ISDIR(entry.st_mode) and entry.st_mode & stat.S_ISVTX and step != path
        if not sticky and (who := find_writers(step, entry, user)):
            return f"{who} can write to {step}"
    return ""


def find_writers(path: Path, entry: os.stat_result, user: User) -> str:
    """Return who besides the user may write to an entry; empty where nobody else may."""
    if entry.st_mode & stat.S_IWOTH:
        return "everybody"
    if not entry.st_mode & stat.S_IWGRP:
        return ""
    if entry.st_gid in (user.private_gid, _ROOT) and not _has_acl(path):
        return ""
    return f"the group {_group_name(entry.st_gid)}"


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Yield every entry on the way to a path, the root first; links, then where they lead."""
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
