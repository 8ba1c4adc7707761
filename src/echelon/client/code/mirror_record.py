"""What a mirror holds: `.echelon/mirror.json` in the copy of a project on a cluster's login host.

`client/remote/mirror.py` writes it. A submission on the host reads which files are the code, and
which commit they are from. A repository may contain such a record too, so only those that this user
wrote count (`core.userstate.remember`).
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from echelon.core.atomic_file import write_atomic
from echelon.core.codec import decode, encode
from echelon.core.files import Stamp, folders
from echelon.core.frozen import frozen
from echelon.core.records import parse_json, read_bytes, render_json
from echelon.core.userstate import is_remembered, remember
from echelon.errors import UnavailableError

OWN_FOLDER = ".echelon"
"""The folder of a mirror with its lock and records."""
RECORD = f"{OWN_FOLDER}/mirror.json"


@frozen
class Commit:
    """What git knows about a project."""

    commit: str = ""
    branch: str = ""
    dirty: bool = False


class MirrorFile(NamedTuple):
    """A file of a mirror."""

    digest: str
    """SHA-256."""
    size: int
    executable: bool
    own: bool
    """Whether Echelon wrote it; False if the same file was there before."""
    stamp: Stamp | None
    """Of the file on the host; None if a change might not show."""


@frozen
class MirrorRecord:
    """Everything in a mirror that is code, by path."""

    files: Mapping[str, MirrorFile] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    """Links and their targets."""
    own_links: tuple[str, ...] = ()
    """Links that Echelon created."""
    commit: Commit = field(default_factory=Commit)
    """Of the project on the machine that sent it."""
    origin: str = ""
    """That machine, and the project's directory on it."""


def has_record(folder: Path) -> bool:
    """Tell whether a folder is a mirror of the current user."""
    return _find_mirror(folder) is not None


def read_own(path: Path) -> dict[str, Any]:
    """Return the record in a file; empty unless this user wrote it, with this content."""
    try:
        content = read_bytes(path)
        return dict(parse_json(content)) if is_remembered(content, os.environ) else {}
    except (OSError, ValueError, TypeError):  # also another file of this user, such as a script
        return {}


def write_own(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record that `read_own` returns.

    Raises:
        UnavailableError: the user's state folder cannot be written.
    """
    content = render_json(record).encode()
    if why := remember(content, os.environ):
        raise UnavailableError(
            f"cannot record in the state folder what is sent to {path.parent.parent}: {why}",
            hint="set XDG_STATE_HOME on the host to a folder that you can write to",
        )
    write_atomic(path, content)


def read_mirror(root: Path) -> MirrorRecord:
    """Return what a mirror holds; nothing if it was never complete."""
    return _find_mirror(root) or MirrorRecord()


def _find_mirror(root: Path) -> MirrorRecord | None:
    record = read_own(root / RECORD)
    try:
        return _parse_mirror(record) if record else None
    except (ValueError, TypeError, AttributeError, KeyError):  # another record of this user
        return None


def _parse_mirror(record: Mapping[str, Any]) -> MirrorRecord:
    return MirrorRecord(
        files={
            path: MirrorFile(
                str(digest), int(size), bool(executable), bool(own), stamp and Stamp(*stamp)
            )
            for path, (digest, size, executable, own, stamp) in record["files"].items()
        },
        links={str(path): str(target) for path, target in record["links"].items()},
        own_links=tuple(map(str, record["own_links"])),
        commit=decode(Commit, record["commit"]),
        origin=str(record.get("origin", "")),
    )


def write_mirror(root: Path, record: MirrorRecord) -> None:
    """Write what a mirror holds."""
    content: dict[str, Any] = {
        "files": dict(record.files),
        "links": dict(record.links),
        "own_links": list(record.own_links),
        "commit": encode(record.commit),
        "origin": record.origin,
    }
    write_own(root / RECORD, content)


def is_changed(root: Path, record: MirrorRecord) -> bool:
    """Tell whether a file or link of a mirror is not as it was sent."""
    return any(
        _is_other_file(f"{root}/{path}", file) for path, file in record.files.items()
    ) or any(_is_other_link(f"{root}/{path}", target) for path, target in record.links.items())


def _is_other_file(path: str, known: MirrorFile) -> bool:
    try:
        found = os.lstat(path)
        if (stat.S_ISREG(found.st_mode), is_executable(found)) != (True, known.executable):
            return True
        if known.stamp == Stamp.of(found):
            return False
        with open(path, "rb") as file:  # noqa: PTH123  many of them
            return hashlib.file_digest(file, "sha256").hexdigest() != known.digest
    except OSError:
        return True


def is_executable(found: os.stat_result) -> bool:
    """Tell whether its owner may execute a file."""
    return bool(found.st_mode & stat.S_IXUSR)


def _is_other_link(path: str, target: str) -> bool:
    try:
        return os.readlink(path) != target  # noqa: PTH115  as text
    except OSError:
        return True


def list_beside(root: Path, code: Iterable[str]) -> list[str]:
    """Return what else is in the folders of a mirror's code; folders without code as one entry."""
    known = set(code)
    holders = {"", *(folder for path in known for folder in folders(path))}
    beside = []
    for folder in sorted(holders):
        try:
            names = os.listdir(root / folder)  # noqa: PTH208  names
        except (FileNotFoundError, NotADirectoryError):  # removed on the host
            continue
        paths = (f"{folder}/{name}" if folder else name for name in sorted(names))
        beside += [path for path in paths if path not in known and path not in holders]
    return beside
