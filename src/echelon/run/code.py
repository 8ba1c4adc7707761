"""The project's code as it was submitted: a run's folder `code`, and the manifest that covers it.

The request holds the digest of the manifest, and the manifest the digest of each file. So whoever
checks the digest of the request, as every job does, knows what the code has to be.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from echelon.core.frozen import frozen
from echelon.core.records import parse_json, read_bytes
from echelon.core.tree import check_paths
from echelon.errors import NotPermittedError
from echelon.run.directory import RunDir

BYTECODE = "__pycache__"
RECENT_NS = 2 * 10**9
"""A file changed this shortly before it was read may change again without a sign: file systems
round times, and clocks of servers differ."""
_READERS = 16
"""How many files are read at a time: shared storage answers slowly, but to many."""
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


class Stamp(NamedTuple):
    """What changes when a file does."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Stamp":
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def is_recent(self) -> bool:
        """Tell whether the file may change again without a sign."""
        return max(self.mtime_ns, self.ctime_ns) > time.time_ns() - RECENT_NS


class CopiedFile(NamedTuple):
    """A file of the code."""

    digest: str
    executable: bool
    mtime_ns: int
    """When the copy was modified: as its first source, so that a later time shows a change."""
    source: Stamp | None
    """The file that it was copied from; None if a change of that one might not show."""


@frozen
class Manifest:
    """Everything in a run's code, by path."""

    files: Mapping[str, CopiedFile]
    links: Mapping[str, str]
    """Links and their targets: those of the project, and those to entries that were not copied."""


def render_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as the content of its file."""
    record = {"files": dict(manifest.files), "links": dict(manifest.links)}
    return json.dumps(record, separators=(",", ":")).encode()


def read_manifest(run: RunDir, digest: str = "") -> Manifest:
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


def _parse_manifest(record: Any) -> Manifest:
    files = {
        path: CopiedFile(str(digest), bool(executable), int(mtime_ns), source and Stamp(*source))
        for path, (digest, executable, mtime_ns, source) in record["files"].items()
    }
    links = {str(path): str(target) for path, target in record["links"].items()}
    check_paths([*files, *links])
    return Manifest(files=files, links=links)


def verify_code(run: RunDir, code: Code) -> None:
    """Compare a run's code with what was submitted.

    Bytecode is removed: root can write it into read-only folders.

    Raises:
        NotPermittedError: something was changed, added or removed.
    """
    manifest = read_manifest(run, code.digest)
    found = dict(_walk(run.code))
    for path, kind in list(found.items()):
        if kind == stat.S_IFDIR:
            shutil.rmtree(run.code / path, ignore_errors=True)
            if not (run.code / path).exists():
                del found[path]
    known = dict.fromkeys(manifest.files, stat.S_IFREG)
    known |= dict.fromkeys(manifest.links, stat.S_IFLNK)
    if found != known:
        path = min(set(found.items()) ^ set(known.items()))[0]
        what = "was added" if path not in known else "is missing or replaced"
        raise _refuse(f"{run.code / path} {what}")
    for path, target in manifest.links.items():
        if str((run.code / path).readlink()) != target:
            raise _refuse(f"{run.code / path} is not what was submitted")
    paths = list(manifest.files)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  seldom needed

    with ThreadPoolExecutor(_READERS) as pool:
        parts = [paths[number::_READERS] for number in range(_READERS)]
        for changed in pool.map(lambda part: _find_changed(run.code, manifest, part), parts):
            if changed:
                raise _refuse(f"{run.code / changed} is not what was submitted")


def _find_changed(code: Path, manifest: Manifest, paths: Iterable[str]) -> str:
    """Return the first of some files with another digest; empty if there is none."""
    for path in paths:
        try:
            with (code / path).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            digest = ""
        if digest != manifest.files[path].digest:
            return path
    return ""


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Yield each entry's path and type; of folders only those with bytecode."""
    left = [""]
    with contextlib.suppress(FileNotFoundError):
        while left:
            before = left.pop()
            with os.scandir(root / before) as entries:
                for entry in entries:
                    path = f"{before}{entry.name}"
                    kind = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                    if kind == stat.S_IFDIR and entry.name != BYTECODE:
                        left.append(f"{path}/")
                    else:
                        yield path, kind


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
