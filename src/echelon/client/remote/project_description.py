"""What a project's code is, as the machine that sends it tells the one that keeps a mirror of it.

Files are known by their digests. Those of unchanged files are remembered in the user's state
folder, so that a project is not read as a whole for each submission.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from echelon.client.code.code_entries import examine, read_settled, relocate_link
from echelon.client.code.code_listing import (
    IGNORE,
    MOST_FILES,
    find_kind,
    list_project,
    read_commit,
)
from echelon.client.code.mirror_record import OWN_FOLDER, Commit
from echelon.client.code.snapshot import MOST_BYTES, check_size
from echelon.core.atomic_file import make_private, write_atomic
from echelon.core.codec import decode, encode
from echelon.core.files import Entry, Stamp, check_paths
from echelon.core.frozen import frozen
from echelon.core.records import MOST_BYTES as MOST_RECORD
from echelon.core.records import find_record, render_json, to_count
from echelon.core.shell import Shell
from echelon.core.tree import Tree
from echelon.errors import NotPermittedError, UnavailableError, UsageError

RUNS = "runs"
"""The folder of runs in a mirror."""
_RESERVED = (OWN_FOLDER, RUNS)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_TARGET = 4095
"""Length of the longest target of a link."""


class ProjectFile(NamedTuple):
    """A file of a project."""

    digest: str
    """SHA-256."""
    size: int
    executable: bool


@frozen
class Project:
    """The code of a project, by path."""

    files: Mapping[str, ProjectFile]
    links: Mapping[str, str]
    """Links and their targets: relative if they are in the project, else as they are."""
    commit: Commit = field(default_factory=Commit)
    origin: str = ""
    """This machine, and the project's directory on it."""

    @property
    def size(self) -> int:
        """The number of bytes in all files."""
        return sum(file.size for file in self.files.values())


def describe_project(root: Path, shell: Shell, *, runs: Path, state: Path | None) -> Project:
    """Describe the code of a project.

    Args:
        root: its directory (`find_root`).
        shell: runs git.
        runs: the directory of runs on this machine, which is not part of the code.
        state: the user's state folder (`core.userstate.state_folder`), where digests are kept.

    Raises:
        UsageError: the project is too large, a file cannot be read or changes all the time, or
            files of the code are in a folder that the mirror uses itself.
    """
    kind = find_kind(root)
    listing = list_project(root, shell, kind=kind, runs=runs)
    entries = [entry for entry in examine(root, listing) if not _is_left_out(entry)]
    _check_names(root, entries)
    check_size(root, entries, remote=True)
    commit = read_commit(root, shell, kind=kind, runs=runs)
    files: dict[str, ProjectFile] = {}
    links: dict[str, str] = {}
    with contextlib.ExitStack() as at_end:
        digests = _Digests(at_end.enter_context(Tree(root)), state)
        at_end.callback(digests.store)
        for entry in entries:
            if stat.S_ISLNK(entry.mode):
                links[entry.path] = relocate_link(root, entry.path, entry.target)
            elif found := digests.find(entry):
                executable = bool(entry.mode & stat.S_IXUSR)
                files[entry.path] = ProjectFile(found[0], found[1], executable)
    origin = f"{os.uname().nodename}:{root}"
    return Project(files=files, links=links, commit=commit, origin=origin)


def _is_left_out(entry: Entry) -> bool:
    """Tell whether an entry means something else in a mirror: its records, its runs."""
    return entry.path.startswith(f"{OWN_FOLDER}/") or entry.path in _RESERVED


def _check_names(root: Path, entries: list[Entry]) -> None:
    inside = [entry.path for entry in entries if entry.path.startswith(f"{RUNS}/")]
    if inside:
        raise UsageError(
            f"files of the project are in the folder '{RUNS}', where a cluster keeps its runs:"
            f" {root / inside[0]}",
            hint=f"rename that folder, or exclude it: echo '/{RUNS}/' >> '{root / IGNORE}'",
        )


class _Digests:
    """The digests of a project's files, those of earlier times included."""

    def __init__(self, tree: Tree, state: Path | None) -> None:
        name = hashlib.sha256(str(tree.root).encode(errors="surrogateescape")).hexdigest()[:32]
        self._tree = tree
        self._path = state and state / "projects" / f"{name}.json"
        self._known = self._read()
        self._found: dict[str, tuple[str, Stamp]] = {}

    def _read(self) -> dict[str, tuple[str, Stamp]]:
        files = find_record(self._path, most=MOST_RECORD).get("files") if self._path else None
        try:
            return {
                path: (str(one), Stamp(*stamp)) for path, (one, stamp) in dict(files or {}).items()
            }
        except (TypeError, ValueError):
            return {}

    def find(self, entry: Entry) -> tuple[str, int] | None:
        """Return the digest and size of a file; None if it is gone."""
        known = self._known.get(entry.path)
        if known and known[1] == entry.stamp:
            self._found[entry.path] = known
            return known[0], entry.stamp.size
        found = read_settled(self._tree, entry)
        if found is None:
            return None
        content, stamp, recent = found
        digest = hashlib.sha256(content).hexdigest()
        if not recent:
            self._found[entry.path] = (digest, stamp)
        return digest, stamp.size

    def store(self) -> None:
        """Keep the digests for the next time."""
        if self._path is None or self._found == self._known:
            return
        with contextlib.suppress(OSError):  # only speed is lost
            make_private(self._path.parent)
            content = {"root": str(self._tree.root), "files": self._found}
            write_atomic(self._path, render_json(content))


# --- on the wire ------------------------------------------------------------------------------


def render_project(project: Project) -> dict[str, Any]:
    """Return a project as a message. Pure."""
    return {
        "files": dict(project.files),
        "links": dict(project.links),
        "commit": encode(project.commit),
        "origin": project.origin,
    }


def parse_project(record: Mapping[str, Any]) -> Project:
    """Return the project in a message. Pure.

    Raises:
        NotPermittedError: a path leads elsewhere, or into a folder that the mirror uses itself.
        UnavailableError: the message is not that of a project, or the project is too large.
    """
    files, links = record.get("files"), record.get("links")
    if not isinstance(files, dict) or not isinstance(links, dict):
        raise _refuse("no files or links")
    check_paths([*files, *links])
    for path in (*files, *links):
        if path.partition("/")[0] in _RESERVED:
            raise NotPermittedError(
                f"refused the path '{path}': Echelon uses that folder itself",
                hint="use the same version of Echelon on both ends",
            )
    project = Project(
        files={path: _parse_file(path, file) for path, file in files.items()},
        links={path: _parse_target(path, target) for path, target in links.items()},
        commit=decode(Commit, commit if isinstance(commit := record.get("commit"), dict) else {}),
        origin=str(record.get("origin", ""))[:_MOST_TARGET],
    )
    if len(files) + len(links) > MOST_FILES or project.size > MOST_BYTES:
        raise _refuse(f"{len(files) + len(links):,} files with {project.size:,} bytes are too many")
    return project


def _parse_file(path: str, file: Any) -> ProjectFile:
    digest, size, executable = file if isinstance(file, list) and len(file) == 3 else (0, 0, 0)
    count = to_count(size)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or count is None:
        raise _refuse(f"damaged entry for the file '{path}'")
    return ProjectFile(digest, count, executable is True)


def _parse_target(path: str, target: Any) -> str:
    if not isinstance(target, str) or not 0 < len(target) <= _MOST_TARGET or "\0" in target:
        raise _refuse(f"damaged entry for the link '{path}'")
    return target


def _refuse(what: str) -> UnavailableError:
    return UnavailableError(
        f"cannot read the description of the project: {what}",
        hint="use the same version of Echelon on both ends",
    )
