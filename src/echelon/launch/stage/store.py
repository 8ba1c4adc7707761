"""The copies that a node keeps on its own disk for the next jobs, one folder per digest.

A copy in use is locked, and the kernel releases the lock with its holder. When a new one needs
room, those that were not used for longest are removed.

A copy is used only if each file has the size and times that it was written with. The time of the
last change of a file cannot be set, so that a changed file is noticed whatever its other times say.
After a reboot the contents are compared as well: what was written last may not have reached the
disk, and so nothing has to wait for it when a copy is made.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from echelon.core.atomic_file import make_private, remove_tree, write_atomic
from echelon.core.files import Entry, for_all, walk
from echelon.core.ownership import find_intruder
from echelon.core.records import SMALL_BYTES, read_bytes, read_record, to_count
from echelon.errors import NotPermittedError, UnavailableError
from echelon.launch.stage.manifest import (
    FILE,
    FOLDER,
    MOST_MANIFEST,
    StageEntry,
    StageManifest,
    decode_manifest,
)

CHUNK = 1 << 19
_NEW, _OLD = ".new-", ".old-"
_BLOCK = 4096
"""Disk space that a small file or folder takes."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def new_digest() -> "hashlib.blake2b":
    """Return a digest of contents. CPUs without instructions for SHA-256 take a third of its time.

    With those instructions it is about as fast.
    """
    return hashlib.blake2b(digest_size=32)


class Stage:
    """A copy in the store, complete or in the making."""

    def __init__(self, folder: Path, manifest: StageManifest, lock: int) -> None:
        self.folder, self.manifest = folder, manifest
        self.digests: dict[int, str] = {}
        """Digest of each file's content, by its position in the manifest."""
        self.missing: Sequence[int] = manifest.files
        """Positions of the files that are to be copied."""
        self._lock = lock
        self._tree = -1

    @property
    def tree(self) -> Path:
        """The folder with the content."""
        return self.folder / "tree"

    @property
    def path(self) -> Path:
        """What ranks use: the folder, or the only file if a file is staged."""
        entries = self.manifest.entries
        alone = len(entries) == 1 and entries[0].kind == FILE
        return self.tree / entries[0].path if alone else self.tree

    def prepare(self) -> None:
        """Make folders and links, and remove what does not belong there."""
        self.tree.mkdir(exist_ok=True, mode=0o700)
        expected = {entry.path: entry for entry in self.manifest.entries}
        for found in walk(self.tree):
            if found.path not in expected or not _is_kind(found, expected[found.path]):
                _remove(self.tree / found.path)
        for entry in self.manifest.entries:
            place = self.tree / entry.path
            if entry.kind == FOLDER:
                place.mkdir(exist_ok=True)
                place.chmod(entry.mode | 0o700)
            elif entry.kind != FILE and not place.is_symlink():
                place.symlink_to(entry.target)

        self._open_tree()

    def _open_tree(self) -> None:
        if self._tree < 0:
            # Relative to this, files can be opened after the folder has got its final name.
            self._tree = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)

    def create(self, position: int) -> int:
        """Open a new file for its content."""
        path = self.manifest.entries[position].path
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600, dir_fd=self._tree)
        except FileExistsError:  # it is damaged
            os.unlink(path, dir_fd=self._tree)
            return os.open(path, flags, 0o600, dir_fd=self._tree)

    def complete(self, position: int, handle: int, digest: str) -> None:
        """Close a file that has all its content."""
        entry = self.manifest.entries[position]
        os.fchmod(handle, entry.mode | 0o400)
        os.utime(handle, ns=(entry.mtime_ns, entry.mtime_ns))
        os.close(handle)
        self.digests[position] = digest

    def read(self, position: int) -> int:
        """Open a file for reading; it may be in the making."""
        path = self.manifest.entries[position].path
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._tree)

    def record(self) -> None:
        """Write down what the copy consists of, now that it is complete."""
        self.missing = []
        positions = self.manifest.files
        entries = [self.manifest.entries[i] for i in positions]
        changed = [os.lstat(self.tree / entry.path).st_ctime_ns for entry in entries]
        index = {"digests": [self.digests[i] for i in positions], "changed_ns": changed}
        write_atomic(self.folder / "manifest.json", self.manifest.encoded, sync=False)
        write_atomic(self.folder / "index.json", json.dumps(index), sync=False)
        info = {"bytes": _space(self.manifest), "boot": _BOOT.read_text().strip()}
        write_atomic(self.folder / "info.json", json.dumps(info), sync=False)

    def open(self) -> None:
        """Open a kept copy: `missing` are then the files that are damaged.

        Raises:
            OSError, ValueError, KeyError, TypeError: it cannot be repaired.
        """
        if self._check():
            self.prepare()
            if not self.missing:
                self.record()
        else:
            self._open_tree()

    def _check(self) -> bool:
        """Find files that are damaged; return whether anything is."""
        info = read_record(self.folder / "info.json", most=SMALL_BYTES)
        index = read_record(self.folder / "index.json", most=MOST_MANIFEST)
        known = zip(self.manifest.files, index["digests"], index["changed_ns"], strict=True)
        changed_ns = {}
        for position, digest, time_ns in known:
            self.digests[position], changed_ns[position] = digest, time_ns
        seen = {found.path: found for found in walk(self.tree)}
        wrong, missing = False, []
        for position, entry in enumerate(self.manifest.entries):
            found = seen.pop(entry.path, None)
            good = found is not None and _is_kind(found, entry)
            if good and found and entry.kind == FILE:
                good = found.stamp[:3] == (entry.size, entry.mtime_ns, changed_ns[position])
            if not good:
                wrong = True
                missing += [position] if entry.kind == FILE else []
        if info["boot"] != _BOOT.read_text().strip():
            missing += self._compare(set(self.manifest.files) - {*missing})
            wrong = True  # so that it is recorded that they were compared
        self.missing = sorted(missing)
        return wrong or bool(seen)

    def _compare(self, positions: set[int]) -> list[int]:
        """Return which files have other contents than they should."""

        def differs(position: int) -> bool:
            path = self.tree / self.manifest.entries[position].path
            with path.open("rb") as file:
                return hashlib.file_digest(file, new_digest).hexdigest() != self.digests[position]

        ordered = sorted(positions)
        return [one for one, bad in zip(ordered, for_all(differs, ordered), strict=True) if bad]

    def discard(self) -> None:
        """Remove what was copied, unless it belongs to a copy that is kept."""
        if self.folder.name.startswith(_NEW):
            remove_tree(self.folder)

    def close(self) -> None:
        """Stop using it; what is incomplete, or was not kept, is removed."""
        if self._tree >= 0:
            os.close(self._tree)
            self._tree = -1
        if self._lock >= 0:
            self.discard()
            if self.folder.name.startswith(_NEW):
                _lock_path(self.folder).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


class StageStore:
    """The copies in a folder of the node's disk."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self._limit = folder, limit

    def prepare(self) -> None:
        """Create the folder.

        Raises:
            NotPermittedError: other users could replace what is in it.
            OSError: it cannot be created.
        """
        make_private(self.folder)
        if why := find_intruder(self.folder):
            raise NotPermittedError(
                f"the stage folder {self.folder} is not trusted: {why}",
                hint="choose a folder that only you can write to: --stage-dir",
            )

    def find(self, digest: str) -> Stage | None:
        """Return a copy, for use; its `missing` says what is damaged. None if there is none."""
        folder = self.folder / digest
        if not digest or not folder.is_dir():
            return None
        lock = _lock(folder, fcntl.LOCK_SH)
        try:
            encoded = read_bytes(folder / "manifest.json", most=MOST_MANIFEST)
            stage = Stage(folder, decode_manifest(encoded, digest), lock)
            stage.open()
            os.utime(folder / "info.json")
        except (OSError, ValueError, KeyError, TypeError):
            os.close(lock)  # beyond repair
            self._remove(folder)
            return None
        return stage

    def create(self, manifest: StageManifest) -> Stage:
        """Return an empty copy, to be filled and then kept.

        Raises:
            UnavailableError: it would be too large.
            OSError: it cannot be created.
        """
        self._make_room(_space(manifest))
        folder = self.folder / f"{_NEW}{secrets.token_hex(8)}"
        lock = _lock(folder, fcntl.LOCK_EX)
        stage = Stage(folder, manifest, lock)
        try:
            folder.mkdir(mode=0o700)
            write_atomic(folder / "info.json", json.dumps({"bytes": _space(manifest)}), sync=False)
            stage.prepare()
        except BaseException:
            stage.close()
            raise
        return stage

    def keep(self, stage: Stage) -> None:
        """Keep a complete copy for other jobs, unless another job has done so meanwhile."""
        stage.record()
        if not stage.folder.name.startswith(_NEW):
            return  # it was repaired
        final = self.folder / stage.manifest.digest
        lock, own = _lock(final, fcntl.LOCK_SH), stage._lock  # noqa: SLF001  its other half
        try:
            stage.folder.rename(final)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return
        _lock_path(stage.folder).unlink(missing_ok=True)
        os.close(own)
        stage.folder, stage._lock = final, lock  # noqa: SLF001

    def _make_room(self, needed: int) -> None:
        """Remove copies until there is room for another."""
        if needed > self._limit:
            raise UnavailableError(
                f"the copy takes {_gib(needed)}, and the stage may have {_gib(self._limit)}",
                hint="allow more: --stage-limit",
            )
        kept = {path: _read_info(path) for path in self.folder.iterdir() if path.is_dir()}
        for path in [one for one in kept if one.name.startswith((_NEW, _OLD))]:
            if self._remove(path):  # its job was killed
                del kept[path]
        by_age = sorted(kept, key=lambda path: kept[path][0])
        while by_age and (
            sum(size for _, size in kept.values()) + needed > self._limit
            or shutil.disk_usage(self.folder).free < needed
        ):
            oldest = by_age.pop(0)
            if self._remove(oldest):
                del kept[oldest]
        if sum(size for _, size in kept.values()) + needed > self._limit:
            raise UnavailableError(
                f"other jobs use the stage, and {_gib(needed)} more would be over its limit",
                hint="allow more: --stage-limit",
            )
        if (free := shutil.disk_usage(self.folder).free) < needed:
            raise UnavailableError(
                f"the copy takes {_gib(needed)}, and {_gib(free)} are free in {self.folder}",
                hint="choose a folder on a larger disk: --stage-dir",
            )

    def _remove(self, folder: Path) -> bool:
        """Remove a copy, unless it is in use."""
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock < 0:
            return False
        try:
            gone = folder
            if not folder.name.startswith((_NEW, _OLD)):
                gone = self.folder / f"{_OLD}{secrets.token_hex(8)}"
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(gone)
            remove_tree(gone)
            _lock_path(folder).unlink(missing_ok=True)
        finally:
            os.close(lock)
        return True


def _lock(folder: Path, how: int) -> int:
    """Return an open lock of a copy; -1 if another process has it and we shall not wait."""
    path = _lock_path(folder)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, how)
        except BlockingIOError:
            os.close(handle)
            return -1
        # Whoever removes a copy removes its lock too: ours may be no more than a memory.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _is_kind(found: Entry, entry: StageEntry) -> bool:
    """Tell whether what was found is what an entry describes, apart from the content of files."""
    if entry.kind == FOLDER:
        return found.is_folder
    if entry.kind == FILE:
        return found.is_file
    return found.is_link and found.target == entry.target


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _space(manifest: StageManifest) -> int:
    """Return how much disk space a copy takes at most."""
    return manifest.size + _BLOCK * len(manifest.entries)


def _read_info(folder: Path) -> tuple[float, int]:
    """Return when a copy was last used, and its size in bytes."""
    try:
        path = folder / "info.json"
        size = to_count(read_record(path, most=SMALL_BYTES)["bytes"])
        return path.stat().st_mtime, size or 0
    except (OSError, ValueError, KeyError):
        return 0.0, 0


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
