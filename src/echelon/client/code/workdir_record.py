"""The record of the project in a workdir on a login host: `.echelon/mirror.json` beside the code.

`client/remote/workdir.py` writes the record. A submission on the host reads from it which files are
the code, and the commit of the code. A cloned repository may contain such a record too, so only
records that this user wrote are read (`core.userstate.remember`).
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from echelon.client.code.project import LINK, OWN_FOLDER, Project, parse_project, render_project
from echelon.client.code.tree import Tree
from echelon.core.atomic_file import write_atomic
from echelon.core.files import BlockedError, Stamp
from echelon.core.frozen import frozen
from echelon.core.records import parse_json, read_bytes, render_json
from echelon.core.userstate import is_remembered, remember
from echelon.errors import EchelonError, UnavailableError

RECORD = f"{OWN_FOLDER}/mirror.json"
FOLDER = "folder"
"""The identity of a folder."""


@frozen
class WorkdirRecord:
    """What Echelon wrote to a workdir."""

    project: Project = field(default_factory=Project)
    """The code that was sent last."""
    before: Mapping[str, str] | None = None
    """During an update, the identities by path of what Echelon wrote before; otherwise None."""
    theirs: tuple[str, ...] = ()
    """Paths where a user had the same file before; Echelon neither replaces nor removes these."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    """The stamps of files on the host, except of files that changed a moment before."""

    def ours(self) -> dict[str, set[str]]:
        """Return by path the identities of what Echelon wrote there."""
        known = {path: {identity} for path, identity in (self.before or {}).items()}
        for path, identity in self.project.identities().items():
            known.setdefault(path, set()).add(identity)
        for path in self.theirs:
            known.pop(path, None)
        return known


def find_record(root: Path) -> WorkdirRecord | None:
    """Return a folder's record; None if there is none, or this user did not write it."""
    try:
        content = read_bytes(root / RECORD)
        return _parse(parse_json(content)) if is_remembered(content, os.environ) else None
    except (OSError, EchelonError, ValueError, TypeError, AttributeError, KeyError):
        return None  # remembered content may be another file of this user, such as a script


def _parse(record: Mapping[str, Any]) -> WorkdirRecord:
    before = record["before"]
    return WorkdirRecord(
        project=parse_project(record["project"]),
        before=None if before is None else {str(path): str(one) for path, one in before.items()},
        theirs=tuple(map(str, record["theirs"])),
        stamps={path: Stamp(*stamp) for path, stamp in record["stamps"].items()},
    )


def write_record(root: Path, record: WorkdirRecord) -> None:
    """Write the record of a folder.

    Raises:
        UnavailableError: the user's state folder cannot be written.
    """
    table = {
        "project": render_project(record.project),
        "before": record.before and dict(record.before),
        "theirs": list(record.theirs),
        "stamps": dict(record.stamps),
    }
    content = render_json(table).encode()
    if why := remember(content, os.environ):
        raise UnavailableError(
            f"cannot record in the state folder what is sent to {root}: {why}",
            hint="set XDG_STATE_HOME on the host to a folder that you can write to",
        )
    write_atomic(root / RECORD, content)


# --- the files on the host --------------------------------------------------------------------


class Found(NamedTuple):
    """The file, link or folder at a path on the host."""

    identity: str = ""
    """As in `Project.identities`; empty if the path does not exist."""
    executable: bool = False
    stamp: Stamp | None = None
    in_the_way: tuple[str, ...] = ()
    """Files and links to remove before a file can be written here: those in a folder at this path,
    or the one that replaces a parent folder."""

    def matches(self, project: Project, path: str) -> bool:
        """Tell whether a project has the same file or link at this path."""
        if (file := project.files.get(path)) is None:
            return self.identity == f"{LINK}{project.links.get(path)}"
        return (self.identity, self.executable) == (file.digest, file.executable)


def examine_path(tree: Tree, path: str, record: WorkdirRecord) -> Found:
    """Examine a path; files with a known stamp are not read."""
    try:
        status = tree.find(path)
    except BlockedError as error:
        return Found(in_the_way=(error.path,))
    if status is None:
        return Found()
    stamp = Stamp.of(status)
    if stat.S_ISLNK(status.st_mode):
        return Found(identity=f"{LINK}{tree.read_link(path)}", stamp=stamp)
    if stat.S_ISDIR(status.st_mode):
        return Found(identity=FOLDER, in_the_way=tuple(tree.list_below(path)))
    if not stat.S_ISREG(status.st_mode):
        return Found(identity="special file", stamp=stamp)
    if stamp == record.stamps.get(path):
        digest = record.project.files[path].digest
    else:
        with tree.open(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Found(identity=digest, executable=bool(status.st_mode & stat.S_IXUSR), stamp=stamp)


def is_changed(root: Path, record: WorkdirRecord) -> bool:
    """Tell whether a file or link of the project was changed since it was sent."""
    project = record.project
    try:
        with Tree(root) as tree:
            return not all(
                examine_path(tree, path, record).matches(project, path)
                for path in (*project.files, *project.links)
            )
    except OSError:
        return True
