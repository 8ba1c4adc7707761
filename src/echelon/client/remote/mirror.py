"""Keeps a copy of a project's code in a folder of a cluster's login host: the mirror.

The sender describes the project, the receiver answers with the paths that it lacks, and the sender
sends these as a tar archive. Each file is complete or not there. After a lost connection, the next
call sends what is still missing. Files on the host that Echelon did not write, or that somebody
changed since, are neither overwritten nor removed.
"""

import fcntl
import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from echelon.client.code.mirror_record import (
    OWN_FOLDER,
    MirrorFile,
    MirrorRecord,
    is_executable,
    read_mirror,
    read_own,
    write_mirror,
    write_own,
)
from echelon.client.remote.mirror_plan import (
    FOLDER,
    Found,
    Plan,
    identify_file,
    identify_link,
    make_plan,
)
from echelon.client.remote.project_description import (
    Project,
    ProjectFile,
    parse_project,
    render_project,
)
from echelon.clusters.ssh.stream import CHUNK_BYTES, ChunkReader, ChunkWriter, Stream
from echelon.core.atomic_file import make_private
from echelon.core.files import BlockedError, Stamp
from echelon.core.frozen import frozen
from echelon.core.tree import Tree, naming_folder
from echelon.core.waiting import wait_until
from echelon.errors import (
    ConflictError,
    NotPermittedError,
    TimedOutError,
    UnavailableError,
    UsageError,
)

_LOCK = f"{OWN_FOLDER}/lock"
_PENDING = f"{OWN_FOLDER}/pending.json"
"""What is being written: after a lost connection, these files are known to be ours."""
_NAMED = 5
"""How many files an error lists."""
_MEMBER_BYTES = 16384
"""What a tar archive needs for a file besides its content, at most: a long path is there twice."""
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)

Progress = Callable[[int, int], None]
"""Is called with the number of bytes that were transferred, and of all that are to be."""


@frozen
class Sent:
    """What was sent."""

    files: int
    size: int
    """In bytes."""
    warnings: tuple[str, ...]
    """From the host, for the user."""


@frozen
class Received:
    """What was received."""

    files: int
    removed: int
    """How many files of an earlier version were removed."""
    warnings: tuple[str, ...]
    """For the user: files that were kept because somebody changed them on the host."""


# --- sending ----------------------------------------------------------------------------------


def send_project(
    project: Project, root: Path, stream: Stream, progress: Progress = lambda _sent, _all: None
) -> Sent:
    """Send the code of a project to a host that calls `Mirror.receive`.

    Args:
        project: what `describe_project` returned.
        root: the project's directory.
        stream: leads to the host.
        progress: is called as bytes are sent.

    Raises:
        UsageError: a file changes meanwhile.
        ConflictError: files on the host would be lost.
        UnavailableError: the connection is lost, or the host's disk is full.
    """
    stream.send(render_project(project))
    lacking = stream.receive().get("lacking")
    if not isinstance(lacking, list) or not all(
        isinstance(path, str) and path in project.files for path in lacking
    ):
        raise stream.refuse("files that are not in the project were asked for")
    size = sum(project.files[path].size for path in lacking)
    sent = 0

    def count(more: int) -> None:
        nonlocal sent
        sent += more
        progress(sent, size)

    writer = ChunkWriter(stream)
    with (
        Tree(root) as tree,
        tarfile.open(fileobj=writer, mode="w|", format=tarfile.PAX_FORMAT) as archive,  # type: ignore[call-overload]
    ):
        for path in lacking:
            _add(archive, tree, path, project.files[path], count)
    writer.close()
    warnings = stream.receive().get("warnings")
    told = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
    return Sent(files=len(lacking), size=size, warnings=told)


def _add(
    archive: tarfile.TarFile,
    tree: Tree,
    path: str,
    file: ProjectFile,
    count: Callable[[int], None],
) -> None:
    """Add a file to an archive, exactly as it was described."""
    member = tarfile.TarInfo(path)
    member.size = file.size
    try:
        with tree.open(path) as opened:
            same = os.fstat(opened.fileno()).st_size == file.size
            source = _Hashing(opened, count)
            if same:
                archive.addfile(member, source)  # type: ignore[arg-type]
    except (OSError, BlockedError) as error:  # also if it ends before its size
        raise _changes(tree.root / path) from error
    if not same or source.digest() != file.digest:
        raise _changes(tree.root / path)


def _changes(path: Path) -> UsageError:
    return UsageError(
        f"{path} changed while the project was sent",
        hint="submit again; exclude files that change all the time in .echelonignore",
    )


class _Hashing:
    """A file that computes the digest of what is read."""

    def __init__(self, file: BinaryIO, count: Callable[[int], None]) -> None:
        self._file, self._count, self._hash = file, count, hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self._count(len(data))
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


# --- the lock ---------------------------------------------------------------------------------


@contextmanager
def hold_mirror(
    workdir: Path, *, timeout_s: float = 600, waiting: Callable[[], None] = lambda: None
) -> Iterator["Mirror"]:
    """Yield the mirror in a folder, which nobody else holds meanwhile.

    Its errors reach the sender if this is inside `stream.reporting()`.

    Args:
        workdir: the folder; it is created, accessible by its owner alone.
        timeout_s: how long to wait for another submission.
        waiting: is called once if it has to wait.

    Raises:
        NotPermittedError: `.echelon` in it is a link, or belongs to another user.
        TimedOutError: another process holds it all the time.
        UnavailableError: it cannot be created or locked.
    """
    with naming_folder(workdir):
        make_private(workdir / OWN_FOLDER)
        workdir = workdir.resolve()
        _check_owner(workdir / OWN_FOLDER)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(workdir / _LOCK, flags, 0o600)
    try:
        _lock(lock, workdir, timeout_s, waiting)
        with naming_folder(workdir):
            tree = Tree(workdir)
        with tree:
            yield Mirror(workdir, tree)
    finally:
        os.close(lock)


def _check_owner(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotPermittedError(
            f"{folder} is not a folder, or belongs to another user",
            hint="choose another workdir for this cluster",
        )


def _lock(lock: int, workdir: Path, timeout_s: float, waiting: Callable[[], None]) -> None:
    def is_locked() -> bool:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise UnavailableError(
                f"cannot lock {workdir / _LOCK}: {error.strerror}",
                hint="choose a workdir on a file system with locks, such as the home directory",
            ) from error
        return True

    if is_locked():
        return
    waiting()
    if not wait_until(is_locked, timeout_s=timeout_s, interval_s=0.1):
        raise TimedOutError(
            f"another submission has held {workdir} for {timeout_s:.0f} s",
            hint=f"see which process it is: fuser -v '{workdir / _LOCK}'",
        )


# --- receiving --------------------------------------------------------------------------------


def receive_project(workdir: Path, stream: Stream) -> Received:
    """Bring a mirror up to date; see `hold_mirror` and `Mirror.receive`."""
    with stream.reporting(), hold_mirror(workdir) as mirror:
        return mirror.receive(stream)


class Mirror:
    """A mirror that this process holds; see `hold_mirror`."""

    def __init__(self, workdir: Path, tree: Tree) -> None:
        self.workdir, self._tree = workdir, tree

    def receive(self, stream: Stream) -> Received:
        """Receive a project from `send_project`, and make the mirror the same.

        Errors are reported to the sender as well. Close the stream after one.

        Raises:
            ConflictError: files on the host would be lost; nothing was changed.
            NotPermittedError: a path leads out of the folder.
            UnavailableError: the connection is lost, or the disk is full; what has arrived is kept.
        """
        with stream.reporting(), naming_folder(self.workdir):
            project = parse_project(stream.receive())
            record, pending = read_mirror(self.workdir), self._read_pending()
            for path in pending:
                self._tree.remove(_beside(path))
            ours = _merge(record, pending)
            paths = sorted({*project.files, *project.links, *ours})
            found = {path: self._examine(path, record.files.get(path)) for path in paths}
            plan = make_plan(project, ours, found)
            self._check(plan)
            self._write_pending(pending, plan, project)
            kept = self._remove(plan.first, found)
            for path in plan.folders:
                self._tree.remove_empty(path)
            stream.send({"lacking": list(plan.files)})
            self._unpack(project, plan.files, found, stream)
            for path in plan.links:
                self._check_unchanged(path, found[path])
                self._tree.link(path, project.links[path], _beside(path).rpartition("/")[2])
            kept += self._remove(plan.last, found)
            write_mirror(self.workdir, _record(project, plan, ours, found))
            (self.workdir / _PENDING).unlink(missing_ok=True)
            warnings = tuple(_warn(path) for path in (*plan.kept, *kept))
            if record.origin not in ("", project.origin):
                warnings += (_warn_other(self.workdir, record.origin),)
            stream.send({"received": len(plan.files), "warnings": list(warnings)})
        removed = len(plan.first) + len(plan.last) - len(kept)
        return Received(files=len(plan.files), removed=removed, warnings=warnings)

    def _read_pending(self) -> dict[str, set[str]]:
        known = read_own(self.workdir / _PENDING).items()
        return {path: set(one) for path, one in known if isinstance(one, list)}

    def _write_pending(self, old: Mapping[str, set[str]], plan: Plan, project: Project) -> None:
        pending = {path: set(one) for path, one in old.items()}
        for path in plan.files:
            pending.setdefault(path, set()).add(identify_file(project.files[path].digest))
        for path in plan.links:
            pending.setdefault(path, set()).add(identify_link(project.links[path]))
        if pending != old:
            content = {path: sorted(one) for path, one in pending.items()}
            write_own(self.workdir / _PENDING, content)

    def _examine(self, path: str, known: MirrorFile | None) -> Found:
        try:
            status = self._tree.find(path)
        except BlockedError as error:
            return Found(blocker=error.path)
        if status is None:
            return Found()
        stamp = Stamp.of(status)
        if stat.S_ISLNK(status.st_mode):
            return Found(identity=identify_link(self._tree.read_link(path)), stamp=stamp)
        if stat.S_ISDIR(status.st_mode):
            return Found(identity=FOLDER, inside=tuple(self._tree.list_below(path)))
        if not stat.S_ISREG(status.st_mode):
            return Found(identity="something else", stamp=stamp)
        if known and known.stamp == stamp:
            digest = known.digest
        else:
            with self._tree.open(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        executable = is_executable(status)
        return Found(identity=identify_file(digest), executable=executable, stamp=stamp)

    def _check(self, plan: Plan) -> None:
        if plan.changed:
            raise ConflictError(
                f"files in {self.workdir} were changed on the host since they were sent:"
                f" {_name(plan.changed)}",
                hint=f"copy the changes to your project, then remove the files there:"
                f" rm '{self.workdir / plan.changed[0]}'",
            )
        if plan.foreign:
            raise ConflictError(
                f"files in {self.workdir} are not from Echelon and differ from the project:"
                f" {_name(plan.foreign)}",
                hint="remove or rename them there, or choose another workdir for this cluster",
            )

    def _check_unchanged(self, path: str, found: Found) -> None:
        """Check that nobody changed a file since it was examined; sending may take minutes."""
        status = self._tree.find(path)
        if (status and Stamp.of(status)) != found.stamp:
            raise ConflictError(
                f"{self.workdir / path} was changed on the host while the project was sent",
                hint="submit again",
            )

    def _remove(self, paths: Iterable[str], found: Mapping[str, Found]) -> list[str]:
        """Remove files and links; return those that were changed meanwhile, which are kept."""
        kept = []
        for path in paths:
            try:
                self._check_unchanged(path, found[path])
            except ConflictError:
                kept.append(path)
                continue
            self._tree.remove(path)
            if "/" in path:
                self._tree.remove_empty(path.rpartition("/")[0])
        return kept

    def _unpack(
        self, project: Project, lacking: Collection[str], found: Mapping[str, Found], stream: Stream
    ) -> None:
        left = set(lacking)
        most = sum(project.files[path].size + _MEMBER_BYTES for path in left) + CHUNK_BYTES
        reader = ChunkReader(stream, most=most)
        try:
            with tarfile.open(fileobj=reader, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    file = project.files.get(member.name) if member.name in left else None
                    plain = member.type in _REGULAR and member.sparse is None
                    source = archive.extractfile(member) if plain else None
                    if file is None or source is None or member.size != file.size:
                        raise stream.refuse(f"an archive with '{member.name}'")
                    self._write(member.name, file, source, found[member.name], stream)
                    left.remove(member.name)
        except (tarfile.TarError, ValueError, KeyError, EOFError) as error:
            raise stream.refuse("a damaged archive") from error
        reader.finish()
        if left:
            raise stream.refuse(f"an archive without '{min(left)}'")

    def _write(
        self, path: str, file: ProjectFile, source: IO[bytes], found: Found, stream: Stream
    ) -> None:
        # Without fsync: after a crash of the host, a file with another digest is reported.
        mode, name = 0o700 if file.executable else 0o600, _beside(path).rpartition("/")[2]
        with self._tree.replacing(path, name, mode=mode) as target:
            digest = hashlib.sha256()
            while data := source.read(CHUNK_BYTES):
                target.write(data)
                digest.update(data)
            if digest.hexdigest() != file.digest:
                raise stream.refuse(f"'{path}' with another digest than announced")
            self._check_unchanged(path, found)


def _beside(path: str) -> str:
    """Return the path of a temporary file in the same folder, always the same one."""
    folder, slash, name = path.rpartition("/")
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{folder}{slash}.echelon-{digest[:16]}.tmp"


def _merge(record: MirrorRecord, pending: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return by path what Echelon wrote there. Pure."""
    ours = {path: {identify_file(file.digest)} for path, file in record.files.items() if file.own}
    ours |= {path: {identify_link(record.links[path])} for path in record.own_links}
    for path, identities in pending.items():
        ours[path] = ours.get(path, set()) | identities
    return ours


def _record(
    project: Project, plan: Plan, ours: Mapping[str, set[str]], found: Mapping[str, Found]
) -> MirrorRecord:
    """Return what a mirror holds once a plan is carried out. Pure."""
    written = {*plan.files, *plan.links}

    def is_own(path: str) -> bool:
        return path in written or found[path].identity in ours.get(path, ())

    def stamp(path: str) -> Stamp | None:
        known = None if path in written else found[path].stamp
        return None if known is None or known.is_recent() else known

    return MirrorRecord(
        files={
            path: MirrorFile(file.digest, file.size, file.executable, is_own(path), stamp(path))
            for path, file in project.files.items()
        },
        links=project.links,
        own_links=tuple(filter(is_own, project.links)),
        commit=project.commit,
        origin=project.origin,
    )


def _name(paths: Collection[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(list(paths)[:_NAMED]) + more


def _warn(path: str) -> str:
    return f"{path} is not in the project any more, but was changed on the host: it is kept there"


def _warn_other(workdir: Path, origin: str) -> str:
    return (
        f"{workdir} held the code of {origin} until now; if that is another project, name another "
        "folder in the profile: workdir"
    )
