"""The sender's side of a submission: describes a project, and sends the files that the host lacks.

Files are identified by their digests. Digests of unchanged files are kept in the user's state
folder, so that a submission reads only the files that changed.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from echelon.client.code.code_listing import IGNORE, find_kind, list_project, read_commit
from echelon.client.code.project import (
    OWN_FOLDER,
    RESERVED,
    RUNS,
    Project,
    ProjectFile,
    render_project,
)
from echelon.client.code.snapshot import check_size, examine, read_settled, relocate_link
from echelon.client.code.tree import Tree
from echelon.clusters.ssh.stream import CHUNK_BYTES, Progress, Stream
from echelon.core.atomic_file import make_private, write_atomic
from echelon.core.files import BlockedError, Entry, Stamp
from echelon.core.frozen import frozen
from echelon.core.records import MOST_BYTES as MOST_RECORD
from echelon.core.records import find_record, render_json
from echelon.core.shell import Shell
from echelon.errors import UsageError

# --- describing -------------------------------------------------------------------------------


def describe_project(root: Path, shell: Shell, *, runs: Path, state: Path | None) -> Project:
    """Describe the code of a project.

    Args:
        root: its directory (`find_root`).
        shell: runs git.
        runs: the directory of runs on this machine, which is not part of the code.
        state: the user's state folder (`core.userstate.state_folder`), where digests are kept.

    Raises:
        UsageError: the project is too large, a file cannot be read or changes all the time, or
            files of the code are in a folder that the workdir uses for runs.
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
            if entry.is_link:
                links[entry.path] = relocate_link(root, entry.path, entry.target)
            elif found := digests.find(entry):
                files[entry.path] = ProjectFile(*found, entry.is_executable)
    origin = f"{os.uname().nodename}:{root}"
    return Project(files=files, links=links, commit=commit, origin=origin)


def _is_left_out(entry: Entry) -> bool:
    """Tell whether a workdir has its record or its runs at the path of an entry."""
    return entry.path.startswith(f"{OWN_FOLDER}/") or entry.path in RESERVED


def _check_names(root: Path, entries: list[Entry]) -> None:
    inside = [entry.path for entry in entries if entry.path.startswith(f"{RUNS}/")]
    if inside:
        raise UsageError(
            f"files of the project are in the folder '{RUNS}', where a cluster keeps its runs:"
            f" {root / inside[0]}",
            hint=f"rename that folder, or exclude it: echo '/{RUNS}/' >> '{root / IGNORE}'",
        )


class _Digests:
    """The digests of a project's files, with those that earlier submissions stored."""

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
        """Return the digest and size of a file; None if it does not exist any more."""
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
        """Store the digests for the next submission."""
        if self._path is None or self._found == self._known:
            return
        with contextlib.suppress(OSError):  # the next submission is only slower
            make_private(self._path.parent)
            content = {"root": str(self._tree.root), "files": self._found}
            write_atomic(self._path, render_json(content))


# --- sending ----------------------------------------------------------------------------------


@frozen
class Sent:
    """The result of sending a project."""

    files: int
    """How many different files the host lacked."""
    size: int
    """How many bytes were sent."""
    warnings: tuple[str, ...]
    """Messages of the host for the user."""


def send_project(
    project: Project, root: Path, stream: Stream, progress: Progress = lambda _sent, _all: None
) -> Sent:
    """Send the code of a project to a host that calls `Workdir.receive`.

    Args:
        project: the result of `describe_project`.
        root: the project's directory.
        stream: the connection to the host.
        progress: called as bytes are sent.

    Raises:
        UsageError: a file was changed since the project was described.
        ConflictError: files on the host would be lost.
        UnavailableError: the connection is lost, or the host's disk is full.
    """
    stream.send(render_project(project))
    paths = {file.digest: path for path, file in project.files.items()}
    lacking = stream.receive().get("lacking")
    if not isinstance(lacking, list) or not all(
        isinstance(digest, str) and digest in paths for digest in lacking
    ):
        raise stream.refuse("files that are not in the project were asked for")
    sent, size = 0, sum(project.files[paths[digest]].size for digest in lacking)
    with Tree(root) as tree:
        for digest in lacking:
            content = _read(tree, paths[digest], digest)
            for start in range(0, len(content), CHUNK_BYTES):
                part = content[start : start + CHUNK_BYTES]
                stream.write(part)
                sent += len(part)
                progress(sent, size)
    stream.flush()
    warnings = stream.receive().get("warnings")
    texts = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
    return Sent(files=len(lacking), size=size, warnings=texts)


def _read(tree: Tree, path: str, digest: str) -> bytes:
    """Return the content of a file; raise an error if it does not have the described digest."""
    error: Exception | None = None
    try:
        with tree.open(path) as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    except (OSError, BlockedError) as caught:
        error = caught
    raise UsageError(
        f"{tree.root / path} changed while the project was sent",
        hint="submit again; exclude files that change all the time in .echelonignore",
    ) from error
