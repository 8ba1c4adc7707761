"""The workdir on a login host: a one-way copy of the project that was sent last.

The sender describes the project, the host answers with the contents that it lacks, and the sender
sends these one after the other. `.echelon/incoming` keeps them until all have arrived, so after a
lost connection the next call requests only missing contents. Then the files are replaced. Files
that Echelon did not write, or that were changed on the host, are neither replaced nor removed.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from echelon.client.code.project import (
    OWN_FOLDER,
    Project,
    ProjectFile,
    check_project,
    parse_project,
)
from echelon.client.code.tree import Tree, naming_folder
from echelon.client.code.workdir_record import (
    FOLDER,
    Found,
    WorkdirRecord,
    examine_path,
    find_record,
    write_record,
)
from echelon.clusters.ssh.stream import Stream
from echelon.core.atomic_file import make_private
from echelon.core.file_lock import locked
from echelon.core.files import BlockedError
from echelon.core.frozen import frozen
from echelon.errors import ConflictError, NotPermittedError, TimedOutError, UnavailableError

_LOCK = f"{OWN_FOLDER}/lock"
_INCOMING = f"{OWN_FOLDER}/incoming"
"""The folder of received contents, each in a file named by its SHA-256."""
_TEMPORARY = ".echelon-part"
"""The name of a file while it is written, in its final folder."""
_NAMED = 5
"""How many files an error lists."""


# --- the lock ---------------------------------------------------------------------------------


@contextmanager
def hold_workdir(root: Path, *, timeout_s: float = 600) -> Iterator["Workdir"]:
    """Lock a workdir for this process, and yield it.

    Errors are reported to the sender if this is called inside `stream.reporting()`.

    Args:
        root: the folder; it is created, accessible by its owner alone.
        timeout_s: how long to wait for another submission.

    Raises:
        NotPermittedError: `.echelon` in the folder is a link, or belongs to another user.
        TimedOutError: another process held the lock until the time-out.
        UnavailableError: the folder cannot be created or locked.
    """
    with naming_folder(root):
        make_private(root / OWN_FOLDER)
        root = root.resolve()
        _check_owner(root / OWN_FOLDER)
    lock = root / _LOCK
    busy = TimedOutError(
        f"another submission has held {root} for {timeout_s:.0f} s",
        hint=f"see which process it is: fuser -v '{lock}'",
    )
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, busy, timeout_s=timeout_s, required=True))
        except OSError as error:
            raise UnavailableError(
                f"cannot lock {lock}: {error.strerror}",
                hint="choose a workdir on a file system with locks, such as the home directory",
            ) from error
        with naming_folder(root):
            tree = held.enter_context(Tree(root))
        yield Workdir(root, tree)


def _check_owner(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotPermittedError(
            f"{folder} is not a folder, or belongs to another user",
            hint="choose another workdir for this cluster",
        )


# --- changes ----------------------------------------------------------------------------------


@frozen
class Changes:
    """Changes that make a workdir equal to the project; none is made if there are conflicts."""

    written: tuple[str, ...]
    """Files and links of the project to write."""
    removed: tuple[str, ...]
    """Files and links to remove, because they are not in the project any more."""
    kept: tuple[str, ...]
    """Files and links that are not in the project any more, but were changed on the host."""
    conflicts: tuple[str, ...]
    """Files and links on the host that would be lost."""


def find_changes(
    project: Project, ours: Mapping[str, Collection[str]], found: Mapping[str, Found]
) -> Changes:
    """Compare a workdir with a project. Pure.

    Args:
        project: the project that was sent.
        ours: by path, the identities of the files and links that Echelon wrote.
        found: the current files and links at all paths of both.
    """
    wanted = project.identities()
    gone = ours.keys() - wanted.keys()
    removed = {path for path in gone if found[path].identity in ours[path]}
    written: list[str] = []
    conflicts: dict[str, None] = {}
    for path, identity in wanted.items():
        there = found[path]
        if there.matches(project, path):
            continue
        free = ("", FOLDER, identity, *ours.get(path, ()))
        if there.identity in free and removed.issuperset(there.in_the_way):
            written.append(path)
        else:
            lost = there.in_the_way or (path,)
            conflicts |= dict.fromkeys(one for one in lost if one not in removed)
    kept = (path for path in gone - removed if found[path].identity not in ("", FOLDER))
    return Changes(
        written=tuple(written),
        removed=tuple(sorted(removed)),
        kept=tuple(sorted(kept)),
        conflicts=tuple(conflicts),
    )


# --- receiving --------------------------------------------------------------------------------


class Workdir:
    """A workdir that this process has locked with `hold_workdir`."""

    def __init__(self, root: Path, tree: Tree) -> None:
        self.root, self._tree = root, tree

    def receive(self, stream: Stream) -> None:
        """Receive a project from `send_project`, and make the workdir equal to it.

        Errors are reported to the sender as well. Close the stream after one.

        Raises:
            ConflictError: files on the host would be lost; nothing was changed.
            NotPermittedError: a path leads out of the folder.
            UnavailableError: the connection is lost, or the disk is full; received contents are
                kept.
        """
        with stream.reporting(), naming_folder(self.root):
            project = parse_project(stream.receive())
            check_project(project)
            record = find_record(self.root) or WorkdirRecord()
            ours = record.ours()
            paths = sorted({*project.files, *project.links, *ours})
            found = {path: examine_path(self._tree, path, record) for path in paths}
            changes = find_changes(project, ours, found)
            self._refuse_conflicts(changes)
            self._collect(project, changes, found, stream)
            self._check_unchanged(changes, found, record)
            self._update(project, changes, found, record)
            warnings = [
                f"{path} is not in the project any more, but was changed on the host: it is kept "
                "there"
                for path in changes.kept
            ]
            if record.project.origin not in ("", project.origin):
                warnings.append(
                    f"{self.root} held the code of {record.project.origin} until now; if that is "
                    "another project, name another folder in the profile: workdir"
                )
            stream.send({"warnings": warnings})

    def _refuse_conflicts(self, changes: Changes) -> None:
        if not (paths := changes.conflicts):
            return
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        first = self.root / paths[0]
        raise ConflictError(
            f"files in {self.root} were created or changed on the host, and differ from the"
            f" project: {', '.join(paths[:_NAMED])}{more}",
            hint="copy what you need of them to your project, and rename or remove them there:"
            f" mv '{first}' '{first}.old'",
        )

    def _check_unchanged(
        self, changes: Changes, found: Mapping[str, Found], record: WorkdirRecord
    ) -> None:
        """Check that no file changed since it was examined, because sending may take minutes."""
        for path in (*changes.written, *changes.removed):
            if examine_path(self._tree, path, record) != found[path]:
                raise ConflictError(
                    f"{self.root / path} was changed on the host while the project was sent",
                    hint="submit again",
                )

    # --- contents -----------------------------------------------------------------------------

    def _collect(
        self, project: Project, changes: Changes, found: Mapping[str, Found], stream: Stream
    ) -> None:
        """Copy all contents to write into `.echelon/incoming`: local ones, then received ones."""
        files = (project.files[path] for path in changes.written if path in project.files)
        sizes = {file.digest: file.size for file in files}
        for name in self._tree.list_names(_INCOMING):
            if self._read(f"{_INCOMING}/{name}", name, sizes.get(name, -1)) is None:
                self._tree.remove(f"{_INCOMING}/{name}")
        here = {one.identity: path for path, one in found.items()}
        received = set(self._tree.list_names(_INCOMING))
        lacking = []
        for digest in (one for one in sizes if one not in received):
            # The host has the contents of files that were renamed, copied or made executable.
            content = self._read(here[digest], digest, sizes[digest]) if digest in here else None
            if content is None:
                lacking.append(digest)
            else:
                self._store(content, digest)
        stream.send({"lacking": lacking})
        for digest in lacking:
            content = stream.read(sizes[digest])
            if hashlib.sha256(content).hexdigest() != digest:
                raise stream.refuse("content with another digest than announced")
            self._store(content, digest)

    def _read(self, path: str, digest: str, size: int) -> bytes | None:
        """Return the content of a file; None if its digest or size differs."""
        try:
            with self._tree.open(path) as file:
                content = file.read(size + 1)
        except (OSError, BlockedError):
            return None
        return content if hashlib.sha256(content).hexdigest() == digest else None

    def _store(self, content: bytes, digest: str) -> None:
        with self._tree.replacing(f"{_INCOMING}/{digest}", _TEMPORARY, mode=0o600) as file:
            file.write(content)

    # --- updating -----------------------------------------------------------------------------

    def _update(
        self, project: Project, changes: Changes, found: Mapping[str, Found], record: WorkdirRecord
    ) -> None:
        """Make the workdir equal to the project, from contents in `.echelon/incoming`.

        During the update, the record lists the old and the new files. After this process was
        killed, the next one can therefore identify all of them.
        """
        if record.before is not None:
            self._remove_temporary(record.project)
        updating = _start_record(project, changes, found, record)
        if changes.written or changes.removed:
            write_record(self.root, updating)
            self._apply(project, changes, found)
        done = _finish_record(updating, changes, found)
        if done != record:
            write_record(self.root, done)
        for name in self._tree.list_names(_INCOMING):
            self._tree.remove(f"{_INCOMING}/{name}")
        self._tree.remove_empty(_INCOMING)

    def _remove_temporary(self, project: Project) -> None:
        """Remove incomplete files of a killed process."""
        folders = {path.rpartition("/")[0] for path in (*project.files, *project.links)}
        for folder in folders:
            self._tree.remove(f"{folder}/{_TEMPORARY}" if folder else _TEMPORARY)

    def _apply(self, project: Project, changes: Changes, found: Mapping[str, Found]) -> None:
        for path in changes.removed:
            self._tree.remove(path)
            if "/" in path:
                self._tree.remove_empty(path.rpartition("/")[0])
        files = [path for path in changes.written if path in project.files]
        last_use = {project.files[path].digest: path for path in files}
        for path in changes.written:
            if found[path].identity == FOLDER:
                self._tree.remove_empty(path)
            if path in project.links:
                self._tree.link(path, project.links[path], _TEMPORARY)
            else:
                file = project.files[path]
                self._write(path, file, moves=last_use[file.digest] == path)

    def _write(self, path: str, file: ProjectFile, *, moves: bool) -> None:
        """Put a received content into its place; several files may have the same content."""
        # Not synced to disk: after a crash of the host, a file with another digest is a conflict.
        content, mode = f"{_INCOMING}/{file.digest}", 0o700 if file.executable else 0o600
        if moves:
            self._tree.move(content, path, mode=mode)
            return
        with (
            self._tree.open(content) as source,
            self._tree.replacing(path, _TEMPORARY, mode=mode) as target,
        ):
            shutil.copyfileobj(source, target)


def _start_record(
    project: Project, changes: Changes, found: Mapping[str, Found], record: WorkdirRecord
) -> WorkdirRecord:
    """Return the record of a workdir during an update. Pure."""
    ours = record.ours()
    wanted = project.identities()
    same = wanted.keys() - changes.written
    return WorkdirRecord(
        project=project,
        before={path: found[path].identity for path in ours if found[path].identity in ours[path]},
        theirs=tuple(sorted(path for path in same if wanted[path] not in ours.get(path, ()))),
    )


def _finish_record(
    updating: WorkdirRecord, changes: Changes, found: Mapping[str, Found]
) -> WorkdirRecord:
    """Return the record of a workdir after an update. Pure."""
    same = updating.project.files.keys() - changes.written
    stamps = {path: stamp for path in same if (stamp := found[path].stamp)}
    settled = {path: stamp for path, stamp in stamps.items() if not stamp.is_recent()}
    return replace(updating, before=None, stamps=settled)
