"""Copies a project's code to the run directory, read-only; all jobs of the run execute this copy.

Files that are the same as in an earlier run of the project are hard links to that run's copy. They
are never links to the project itself, because an editor may write into a file in place.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from echelon.client.code.code_listing import IGNORE, Listing, find_root, list_project, read_commit
from echelon.client.code.project import MOST_BYTES, MOST_FILES, Commit
from echelon.client.code.tree import Tree
from echelon.core.atomic_file import write_atomic
from echelon.core.files import BlockedError, Entry, Stamp
from echelon.core.frozen import frozen
from echelon.core.records import read_bytes
from echelon.core.shell import Shell
from echelon.core.units import format_bytes
from echelon.core.userstate import is_remembered, remember
from echelon.errors import EchelonError, UsageError
from echelon.run.code import Code, CodeManifest, CopiedFile, read_manifest, render_manifest
from echelon.run.directory import RunDir
from echelon.run.listing import list_runs
from echelon.run.request import read_code
from echelon.spec.job_spec import JobSpec

_TRIES = 3
"""How often to read a file that changes during the read."""
_NAMED = 5
"""How many of the largest entries an error lists."""
_MOST_EARLIER = 20
"""How many earlier runs are considered."""


@frozen
class Earlier:
    """The code of an earlier run."""

    folder: Path
    manifest: CodeManifest


def take_snapshot(
    run: RunDir,
    spec: JobSpec,
    folder: Path,
    shell: Shell,
    *,
    added: Mapping[str, bytes] | None = None,
) -> Code | None:
    """Copy the code of a run's project into its directory; None for a program on PATH.

    Args:
        run: the run.
        spec: its request.
        folder: its working directory.
        shell: runs git.
        added: files that are added to the project's, path → content; the script is one of them.

    Raises:
        UsageError: the project is too large, or a file cannot be read.
    """
    script = None if spec.module or added else folder / spec.script
    if script is not None and not script.exists():
        return None  # a program on PATH
    if os.pathsep in str(run.path.absolute()):
        raise UsageError(
            f"the code cannot be copied to {run.path}: Python's search path is separated by colons",
            hint="choose another directory with --runs-dir, or use --no-snapshot",
        )
    runs = run.path.parent.resolve()
    root, kind = find_root(folder, script, shell)
    listing, commit = Listing(code=(), beside=()), Commit()
    entries: list[Entry] = []
    earlier: Earlier | None = None
    if spec.snapshot is not False:  # otherwise, only the added files are copied
        listing = list_project(root, shell, kind=kind, runs=runs)
        entries = list(examine(root, listing))
        check_size(root, entries, links=len(listing.beside))
        commit = read_commit(root, shell, kind=kind, runs=runs)
        earlier = find_earlier(run, root)
    manifest = copy_code(
        root, entries, listing.beside, run.code, earlier=earlier, added=added or {}
    )
    return Code(
        root=str(root),
        digest=store_manifest(run, manifest),
        commit=commit.commit,
        branch=commit.branch,
        dirty=commit.dirty,
    )


def store_manifest(run: RunDir, manifest: CodeManifest) -> str:
    """Write the manifest of a run's code, and return its SHA-256."""
    content = render_manifest(manifest)
    remember(content, os.environ)
    write_atomic(run.manifest, content)
    return hashlib.sha256(content).hexdigest()


# --- the files as they are on disk ------------------------------------------------------------


def examine(root: Path, listing: Listing) -> Iterator[Entry]:
    """Yield the files and links of a listing that exist."""
    with Tree(root) as tree:
        for path in listing.code:
            # Git also lists files that were deleted, and those of a folder that became a link.
            with contextlib.suppress(FileNotFoundError, BlockedError):
                found = tree.examine(path)
                if found and (found.is_file or found.is_link):
                    yield found


def place_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy: relative if the link leads into the project. Pure."""
    folder = root / os.path.dirname(path)  # noqa: PTH120
    full = os.path.normpath(folder / target)
    if full == str(root) or full.startswith(f"{root}/"):
        return os.path.relpath(full, folder)
    return full


def relocate_link(root: Path, path: str, target: str) -> str:
    """Return the target of a link's copy on another machine. Pure.

    A link into the project becomes relative. Any other link keeps its target, which may not exist
    on the other machine.
    """
    placed = place_link(root, path, target)
    return target if os.path.isabs(placed) else placed  # noqa: PTH117  text


def read_settled(tree: Tree, entry: Entry) -> tuple[bytes, Stamp, bool] | None:
    """Return a file's content, its size and times, and whether it changed a moment ago.

    Return None if the file does not exist any more.
    """
    full = f"{tree.root}/{entry.path}"
    try:
        for _ in range(_TRIES):
            with tree.open(entry.path) as file:
                before = Stamp.of(os.fstat(file.fileno()))
                content = file.read()
                after = Stamp.of(os.fstat(file.fileno()))
            if before == after and len(content) == before.size:
                return content, before, before.is_recent()
    except (FileNotFoundError, BlockedError):
        return None
    except OSError as error:
        raise UsageError(
            f"cannot read {full}: {error.strerror}",
            hint=f"exclude it: echo '/{entry.path}' >> '{tree.root}/{IGNORE}'",
        ) from error
    raise UsageError(
        f"{full} changes all the time, so it cannot be copied",
        hint=f"exclude it: echo '/{entry.path}' >> '{tree.root}/{IGNORE}'",
    )


# --- limits -----------------------------------------------------------------------------------


def check_size(
    root: Path, entries: Iterable[Entry], *, links: int = 0, remote: bool = False
) -> None:
    """Check that a project is not too large to be copied for each run.

    Args:
        root: the project's directory.
        entries: its files and links.
        links: how many other links are created.
        remote: whether the project is sent to another machine, where jobs find no other files.

    Raises:
        UsageError: the project is too large; the message lists the largest folders and files.
    """
    sizes = {entry.path: entry.status.st_size for entry in entries}
    total = sum(sizes.values())
    if len(sizes) + links > MOST_FILES:
        about = f"more than {MOST_FILES:,} files"
        counts = Counter(path.rpartition("/")[0] or "." for path in sizes)
        largest = [(f"{name}/", f"{n:,} files") for name, n in counts.most_common(_NAMED)]
    elif total > MOST_BYTES:
        about = f"{format_bytes(total)} of code; at most {format_bytes(MOST_BYTES)} are copied"
        largest = [(name, format_bytes(size)) for name, size in find_largest(sizes)]
    else:
        return
    shown = ", ".join(f"{name} ({size})" for name, size in largest)
    how = "and copy it to the cluster" if remote else "which jobs still find"
    exclude = f"exclude data, {how}: echo '/{largest[0][0]}' >> '{root}/{IGNORE}'"
    move = "a home directory cannot be a project: move the script into a directory of its own"
    raise UsageError(
        f"the project {root} has {about}. The largest: {shown}",
        hint=(move if root == Path.home() else exclude)
        + ("" if remote else "; or use --no-snapshot"),
    )


def find_largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the largest files, and the folders whose other files are large together. Pure."""
    folders: Counter[str] = Counter()
    for path, size in sizes.items():
        if "/" in path:
            folders[f"{path.rpartition('/')[0]}/"] += size
    alone = {path: size for path, size in sizes.items() if size > sum(sizes.values()) // 10}
    for path, size in alone.items():
        if "/" in path:
            folders[f"{path.rpartition('/')[0]}/"] -= size
    return (Counter(alone) + folders).most_common(_NAMED)


# --- copying ----------------------------------------------------------------------------------


def find_earlier(run: RunDir, root: Path) -> Earlier | None:
    """Return the code of the newest other run of a project; None if there is none."""
    known = [one for one in list_runs(run.path.parent) if one.run_id != run.run_id]
    for one in reversed(known[-_MOST_EARLIER:]):
        with contextlib.suppress(EchelonError, OSError):
            code = read_code(one)
            own = read_own_manifest(one) if code and code.root == str(root) else None
            if own is not None:
                return Earlier(folder=one.code, manifest=own)
    return None


def read_own_manifest(run: RunDir) -> CodeManifest | None:
    """Return the manifest of a run's code if this user wrote it.

    A manifest from another user or machine may describe any file as unchanged.
    """
    try:
        own = is_remembered(read_bytes(run.manifest), os.environ)
    except OSError:
        return None
    return read_manifest(run) if own else None


def copy_code(
    root: Path,
    entries: Iterable[Entry],
    beside: Iterable[str],
    copy: Path,
    *,
    earlier: Earlier | None,
    added: Mapping[str, bytes],
) -> CodeManifest:
    """Copy the files and links of a project, and link the entries beside them.

    Return the manifest of the copy.
    """
    made = _Folders(copy)
    files: dict[str, CopiedFile] = {}
    links: dict[str, str] = {}
    with Tree(root) as tree:
        for entry in entries:
            made.make(entry.path)
            if entry.is_link:
                links[entry.path] = place_link(root, entry.path, entry.target)
                os.symlink(links[entry.path], f"{copy}/{entry.path}")  # noqa: PTH211  many of them
            elif copied := _copy(tree, entry, copy, earlier):
                files[entry.path] = copied
    for path in beside:
        if path not in files and path not in links:
            made.make(path)
            links[path] = f"{root}/{path}"
            os.symlink(links[path], f"{copy}/{path}")  # noqa: PTH211
    for path, content in added.items():
        made.make(path)
        _write(f"{copy}/{path}", content, 0o400)
        mtime_ns = os.stat(f"{copy}/{path}").st_mtime_ns  # noqa: PTH116
        files[path] = CopiedFile(hashlib.sha256(content).hexdigest(), False, mtime_ns, None)
    made.close()
    return CodeManifest(files=files, links=links)


class _Folders:
    """The folders of a copy."""

    def __init__(self, copy: Path) -> None:
        self._copy, self._made = copy, {""}
        copy.mkdir(mode=0o700)

    def make(self, path: str) -> None:
        """Create the folders around a path."""
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            self.make(folder)
            os.mkdir(f"{self._copy}/{folder}", 0o700)  # noqa: PTH102  many of them
            self._made.add(folder)

    def close(self) -> None:
        """Make the folders read-only."""
        for folder in self._made:
            os.chmod(f"{self._copy}/{folder}", 0o500)  # noqa: PTH101


def _copy(tree: Tree, entry: Entry, copy: Path, earlier: Earlier | None) -> CopiedFile | None:
    """Copy a file, or link it to its earlier copy; None if the file does not exist any more."""
    known = earlier.manifest.files.get(entry.path) if earlier else None
    before = f"{earlier.folder}/{entry.path}" if earlier else ""
    target, executable = f"{copy}/{entry.path}", entry.is_executable
    unchanged = known and (known.source, known.executable) == (entry.stamp, executable)
    if known and unchanged and _link(before, known, target):
        return known
    found = read_settled(tree, entry)
    if found is None:
        return None
    content, stamp, recent = found
    digest, source = hashlib.sha256(content).hexdigest(), None if recent else stamp
    same = known and (known.digest, known.executable) == (digest, executable)
    if known and same and _link(before, known, target):
        return known._replace(source=source)
    _write(target, content, 0o500 if executable else 0o400, stamp.mtime_ns)
    return CopiedFile(digest, executable, stamp.mtime_ns, source)


def _write(target: str, content: bytes, mode: int, mtime_ns: int = 0) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        if mtime_ns:
            os.utime(handle, ns=(mtime_ns, mtime_ns))


def _link(path: str, known: CopiedFile, target: str) -> bool:
    """Link a file to its earlier copy, unless that copy was altered or links are not possible.

    The content is compared, because a run that another user had may be altered with the same times.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mtime_ns != known.mtime_ns or found.st_mode & 0o277:
                return False
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                return False
            if hashlib.file_digest(file, "sha256").hexdigest() != known.digest:
                return False
        os.link(path, target, follow_symlinks=False)
    except OSError:  # some file systems have no hard links, and all limit links per file
        return False
    return True


def copy_again(earlier: RunDir, run: RunDir) -> None:
    """Give a run the same code as an earlier one."""
    manifest = read_manifest(earlier)
    made = _Folders(run.code)
    for path in manifest.files:
        made.make(path)
        try:
            os.link(earlier.code / path, run.code / path, follow_symlinks=False)
        except OSError:
            shutil.copy2(earlier.code / path, run.code / path)
    for path, target in manifest.links.items():
        made.make(path)
        (run.code / path).symlink_to(target)
    made.close()
    write_atomic(run.manifest, read_bytes(earlier.manifest))
