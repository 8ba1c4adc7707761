"""What differs between the code of two runs, or between a run's code and its project."""

import contextlib
import difflib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from echelon.client.code.code_listing import find_kind, list_project
from echelon.client.code.snapshot import examine, place_link, read_own_manifest, relocate_link
from echelon.client.code.tree import Tree
from echelon.core.files import BlockedError
from echelon.core.frozen import frozen
from echelon.core.shell import Shell
from echelon.errors import NotFoundError
from echelon.run.code import Code, read_manifest
from echelon.run.directory import RunDir
from echelon.run.request import read_code

_MOST_BYTES = 2**20
"""Size of the longest file whose lines are compared."""
_LINK = "link to "
"""What a link's identity begins with."""


@frozen
class Side:
    """One of two versions of the code."""

    name: str
    folder: Path
    files: Mapping[str, str]
    """By path, the digest of a file, or `_LINK` and the target of a link."""

    def read(self, path: str) -> tuple[bytes, int]:
        """Return the beginning of a file, and its size; empty and 0 if the file does not exist."""
        identity = self.files.get(path)
        if identity is None:
            return b"", 0
        if identity.startswith(_LINK):
            return f"{identity}\n".encode(), len(identity) + 1
        # `Tree` refuses links and pipes, which a damaged copy may have in the file's place.
        try:
            with Tree(self.folder) as tree, tree.open(path) as file:
                return file.read(_MOST_BYTES), os.fstat(file.fileno()).st_size
        except (FileNotFoundError, BlockedError):
            return b"", 0


def find_code(run: RunDir) -> Code:
    """Return which code a run executes.

    Raises:
        NotFoundError: the run has no copy of its code.
    """
    code = read_code(run)
    if code is None:
        raise NotFoundError(
            f"the run '{run.run_id}' has no copy of its code: it executes the project itself",
            hint="copy the code at the start of a run: echelon submit, or echelon run --snapshot",
        )
    return code


def read_run(run: RunDir) -> Side:
    """Return the code of a run.

    Raises:
        NotFoundError: the run has no copy of its code.
    """
    code, manifest = find_code(run), read_manifest(run)
    files = {path: file.digest for path, file in manifest.files.items()}
    for path, target in manifest.links.items():
        if target != f"{code.root}/{path}":  # links to files beside the code are not code
            files[path] = f"{_LINK}{target}"
    return Side(name=run.run_id, folder=run.code, files=files)


def read_project(run: RunDir, shell: Shell, root: Path | None = None) -> Side:
    """Return the code of a run's project as it is now, with the links that a copy would have.

    Args:
        run: the run. With `root`, it may have been fetched: only its request and manifest are read.
        shell: runs git.
        root: the project's directory on this machine; None if it is where the run was started.

    Raises:
        NotFoundError: the run has no copy of its code, or the project does not exist.
    """
    code = find_code(run)
    origin, runs = Path(code.root), run.path.parent.resolve()
    # The times in a manifest from another machine are of other files, so all files are read.
    own = None if root else read_own_manifest(run)
    known = own.files if own else {}
    if root and not runs.is_relative_to(root):
        runs = root / "runs"
    root = root or origin
    if not root.is_dir():
        raise NotFoundError(
            f"the project of the run '{run.run_id}' is gone: {root}",
            hint=f"its code is in {run.code}",
        )
    listing = list_project(root, shell, kind=find_kind(root), runs=runs)
    files = {}
    with Tree(root) as tree:
        for entry in examine(root, listing):
            copied = known.get(entry.path)
            if entry.target:
                target = relocate_link(root, entry.path, entry.target)
                files[entry.path] = f"{_LINK}{place_link(origin, entry.path, target)}"
            elif copied and copied.source == entry.stamp:
                files[entry.path] = copied.digest
            else:
                # The file may be deleted meanwhile.
                with (
                    contextlib.suppress(FileNotFoundError, BlockedError),
                    tree.open(entry.path) as file,
                ):
                    files[entry.path] = hashlib.file_digest(file, "sha256").hexdigest()
    return Side(name=".", folder=root, files=files)


def compare(old: Side, new: Side) -> dict[str, str]:
    """Return the files that differ, by path: whether each was added, removed or changed. Pure."""
    return {
        path: "added"
        if path not in old.files
        else "removed"
        if path not in new.files
        else "changed"
        for path in sorted({*old.files, *new.files})
        if old.files.get(path) != new.files.get(path)
    }


def render_diff(old: Side, new: Side) -> Iterator[str]:
    """Yield the lines of a unified diff, as `patch -p1` reads it."""
    for path, change in compare(old, new).items():
        (before, was), (after, size) = old.read(path), new.read(path)
        if b"\0" in before + after or max(was, size) > _MOST_BYTES:
            yield f"{path}: {change}, {was} → {size} bytes"
            continue
        names = (
            os.devnull if change == "added" else f"{old.name}/{path}",
            os.devnull if change == "removed" else f"{new.name}/{path}",
        )
        texts = (_lines(before), _lines(after))
        for line in difflib.unified_diff(*texts, *names):
            whole = line.rstrip("\n")
            yield whole
            if whole == line and not line.startswith(("---", "+++", "@@")):
                yield "\\ No newline at end of file"


def _lines(content: bytes) -> list[str]:
    return content.decode(errors="replace").splitlines(keepends=True)
