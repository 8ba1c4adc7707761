"""The project's code as it was submitted: a run's folder `code`, and the manifest that covers it.

The request holds the digest of the manifest, and the manifest the digest of each file. So whoever
checks the digest of the request, as every job does, knows what the code has to be.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from echelon.core.files import Entry, Stamp, check_paths, for_all, walk
from echelon.core.frozen import frozen
from echelon.core.records import parse_json, read_bytes
from echelon.errors import NotPermittedError
from echelon.run.directory import RunDir

BYTECODE = "__pycache__"
_DAMAGED = (ValueError, TypeError, AttributeError, KeyError, OverflowError, NotPermittedError)
"""What reading a damaged manifest raises."""


@frozen
class Code:
    """Which code a run executes: the table `code` of its request."""

    root: str
    """The project's directory."""
    digest: str
    """SHA-256 of the manifest."""
    commit: str = ""
    """The commit that was checked out; empty without git."""
    branch: str = ""
    dirty: bool = False
    """Whether files differed from the commit, or were not in it."""

    def describe(self) -> str:
        """Return the commit for people; empty without git."""
        if not self.commit:
            return ""
        facts = [*filter(None, [self.branch]), *(["uncommitted changes"] if self.dirty else [])]
        return f"{self.commit[:10]} ({', '.join(facts)})" if facts else self.commit[:10]


class CopiedFile(NamedTuple):
    """A file of the code."""

    digest: str
    executable: bool
    mtime_ns: int
    """When the copy was modified: as its first source, so that a later time shows a change."""
    source: Stamp | None
    """The file that it was copied from; None if a change of that one might not show."""


@frozen
class CodeManifest:
    """Everything in a run's code, by path."""

    files: Mapping[str, CopiedFile]
    links: Mapping[str, str]
    """Links and their targets: those of the project, and those to entries that were not copied."""


def render_manifest(manifest: CodeManifest) -> bytes:
    """Return a manifest as the content of its file."""
    record = {"files": dict(manifest.files), "links": dict(manifest.links)}
    return json.dumps(record, separators=(",", ":")).encode()


def read_manifest(run: RunDir, digest: str = "") -> CodeManifest:
    """Read the manifest of a run's code.

    Args:
        run: the run.
        digest: the expected SHA-256; empty to accept any.

    Raises:
        NotPermittedError: it is missing, damaged, has another digest, or names a path that leads
            out of the code.
    """
    try:
        data = read_bytes(run.manifest)
        manifest = _parse_manifest(parse_json(data))
    except (OSError, *_DAMAGED) as error:
        raise _refuse(f"{run.manifest} is not what was submitted: {error}") from error
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise _refuse(f"{run.manifest} is not what was submitted (its SHA-256 differs)")
    return manifest


def _parse_manifest(record: Any) -> CodeManifest:
    files = {
        path: CopiedFile(str(digest), bool(executable), int(mtime_ns), source and Stamp(*source))
        for path, (digest, executable, mtime_ns, source) in record["files"].items()
    }
    links = {str(path): str(target) for path, target in record["links"].items()}
    check_paths([*files, *links])
    return CodeManifest(files=files, links=links)


def verify_code(run: RunDir, code: Code) -> None:
    """Compare a run's code with what was submitted.

    Bytecode is removed: root can write it into read-only folders.

    Raises:
        NotPermittedError: something was changed, added or removed.
    """
    manifest = read_manifest(run, code.digest)
    found = _find_entries(run.code)
    known = manifest.files.keys() | manifest.links.keys()
    for path in sorted(found.keys() | known):
        if path not in known:
            raise _refuse(f"{run.code / path} was added")
        entry, target = found.get(path), manifest.links.get(path)
        if entry is None or not (entry.is_file if target is None else entry.is_link):
            raise _refuse(f"{run.code / path} is missing or replaced")
        if target is not None and entry.target != target:
            raise _refuse(f"{run.code / path} is not what was submitted")

    def check(path: str) -> None:
        if _compute_digest(run.code / path) != manifest.files[path].digest:
            raise _refuse(f"{run.code / path} is not what was submitted")

    for_all(check, list(manifest.files))


def _find_entries(code: Path) -> dict[str, Entry]:
    """Remove bytecode from a run's code; return the rest, without folders."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in walk(code, enter=lambda folder: folder.name != BYTECODE):
            if entry.is_folder and entry.name == BYTECODE:
                shutil.rmtree(code / entry.path, ignore_errors=True)
                if (code / entry.path).exists():
                    found[entry.path] = entry
            elif not entry.is_folder:
                found[entry.path] = entry
    return found


def _compute_digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _refuse(what: str) -> NotPermittedError:
    return NotPermittedError(
        f"refused to start: {what}", hint="submit the code again: echelon submit"
    )


@frozen
class ProjectCopy:
    """Finds the copies of a project's files."""

    root: Path
    """The project."""
    copy: Path
    folder: Path
    """The working directory, for relative paths."""

    def find(self, path: str) -> str:
        """Return the copy of a file or folder; the path as given if there is none."""
        full = os.path.join(self.folder, path)  # noqa: PTH118  `path` may be empty
        parent, name = os.path.split(full.rstrip("/"))
        # Its name may be a link, which was copied as one.
        inner = os.path.relpath(os.path.join(os.path.realpath(parent), name), self.root)  # noqa: PTH118
        if inner.startswith("../") or inner == "..":
            return path
        copy = os.path.normpath(os.path.join(self.copy, inner))  # noqa: PTH118
        return copy if os.path.exists(copy) and self._is_copied(copy) else path  # noqa: PTH110

    def _is_copied(self, path: str) -> bool:
        """Tell whether a path leads nowhere else, such as back into the project."""
        real, own = os.path.realpath(path), os.path.realpath(self.copy)
        return real == own or real.startswith(f"{own}/")


def find_copy(run: RunDir, code: Code | None, folder: str) -> ProjectCopy | None:
    """Return the copy of the project that a run executes; None if it executes the project."""
    if code is None:
        return None
    return ProjectCopy(root=Path(code.root), copy=run.code.absolute(), folder=Path(folder))
