"""Copies files of a run from a cluster's login host to this machine.

The host lists the files, the receiver answers which it needs and from which byte, and the host
sends these. A file that was received in part is kept as a `.part` file in the same folder. The next
call continues it if the source is still the same.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from echelon.client.code.code_listing import parse_ignore
from echelon.client.code.tree import Tree, naming_folder
from echelon.clusters.ssh.stream import CHUNK_BYTES, Progress, Stream
from echelon.core.atomic_file import make_private
from echelon.core.file_lock import locked
from echelon.core.files import BlockedError, Entry, check_paths, folders, is_inner, walk
from echelon.core.frozen import frozen
from echelon.core.records import to_count
from echelon.core.units import counted
from echelon.errors import ConflictError, NotFoundError, NotPermittedError, UsageError

DEFAULT_WANTED = (
    *("spec.toml", "code.json", "job.sbatch", "verdict.json", "metrics.jsonl", "saved"),
    *("tracker", "mlflow", "attempts", "events", "logs", "telemetry", "tensorboard", "wandb"),
)
"""Entries that are fetched by default: all but checkpoints, code and launcher."""
MOST_ENTRIES = 100_000
"""Limit of files and folders per call, because a host could create any number of them here."""
_ACTED_ON = re.compile(
    r"(?:^|/)(?:\.(?!(?:metadata|zarray|zattrs|zgroup|zmetadata)\Z)|head\Z|git~[0-9]"
    r"|(?:pip\.(?:conf|ini)|pyvenv\.cfg)\Z|(?:site|user)customize(?:[./]|\Z))"
    r"|[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]",
    re.IGNORECASE,
)
"""Matches paths with names that git, shells, direnv, editors, pip or Python read on their own.

Nearly all these names are hidden; hidden data files (a checkpoint's `.metadata`, Zarr's files) do
not match. A folder with a file `HEAD` can be a repository. Some file systems accept `git~1` for
`.git`, and ignore the invisible characters at the end of the pattern.
"""
_PIECE_BYTES = 1 << 16
"""How many received bytes are written at a time."""
_PART = re.compile(r"\.echelon-([0-9a-f]{16})-[0-9]+-[0-9]+\.part")
"""The name of a `.part` file: a digest of the file's name, the size and the time of its source."""


class RunFile(NamedTuple):
    """A file of a run, as the host lists it."""

    size: int
    mtime_ns: int
    executable: bool


@frozen
class Fetched:
    """Counts of what `receive_files` did."""

    files: int
    """How many files were transferred."""
    size: int
    """How many bytes were transferred."""
    unchanged: int
    """How many files existed already."""
    warnings: tuple[str, ...]
    """Messages for the user about files that were left out."""


def send_files(run_path: Path, wanted: Sequence[str], stream: Stream) -> None:
    """Send files of a run to a machine that calls `receive_files`.

    Errors are reported to the receiver as well. Close the stream after one.

    Args:
        run_path: the run directory.
        wanted: glob patterns relative to it, such as `logs/*.out`; a folder stands for all files
            in it, and `**` for any number of folders. Empty for `DEFAULT_WANTED`.
        stream: the connection to the receiver.

    Raises:
        NotFoundError: a pattern matches nothing.
        UsageError: a pattern leads out of the run directory.
        UnavailableError: the connection is lost, or a file cannot be read.
    """
    with stream.reporting(), naming_folder(run_path):
        files = list_files(run_path, wanted)
        listed = {
            path: RunFile(one.status.st_size, one.status.st_mtime_ns, one.is_executable)
            for path, one in files.items()
        }
        stream.send({"files": listed})
        needs = stream.receive().get("needs")
        if not isinstance(needs, dict) or not needs.keys() <= files.keys():
            raise stream.refuse("files that were not listed were asked for")
        with Tree(run_path) as tree:
            for path, offset in needs.items():
                _send_file(tree, files[path], to_count(offset) or 0, stream)
        stream.flush()


def list_files(run_path: Path, wanted: Sequence[str]) -> dict[str, Entry]:
    """Return the files of a run that match patterns, sorted by path; see `send_files`."""
    patterns = parse_wanted(wanted)
    found: list[Entry] = []
    matched: set[str] = set()

    def enter(folder: Entry) -> bool:
        return "/" in folder.path or any(_may_begin(one, folder.path) for one in patterns)

    for entry in walk(run_path, enter=enter):
        if entry.is_file and not _PART.fullmatch(entry.name):
            matching = [one for one, pattern in patterns.items() if pattern.fullmatch(entry.path)]
            matched.update(matching)
            found += [entry] if matching else []
    missing = [one for one in wanted if one not in matched]
    if missing:
        raise NotFoundError(
            f"the run '{run_path.name}' has no files that match '{missing[0]}'",
            hint=f"choose from: {', '.join(sorted(os.listdir(run_path)))}",  # noqa: PTH208  names
        )
    return {entry.path: entry for entry in sorted(found)}


def parse_wanted(wanted: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """Return a regular expression for each glob pattern. Pure.

    Raises:
        UsageError: a pattern leads out of the run directory.
    """
    for one in wanted:
        if not is_inner(one.rstrip("/")):
            raise UsageError(
                f"'{one}' is not a path in a run directory",
                hint="pass paths relative to it, such as 'logs' or 'checkpoints/step-000001000'",
            )
    return {one: parse_ignore(f"/{one.strip('/')}") for one in wanted or DEFAULT_WANTED}


def _may_begin(wanted: str, name: str) -> bool:
    """Tell whether a pattern may match a path that begins with an entry of the run directory."""
    first = wanted.partition("/")[0]
    return "**" in first or parse_ignore(f"/{first}").fullmatch(name) is not None


def _send_file(tree: Tree, listed: Entry, offset: int, stream: Stream) -> None:
    """Send a file from an offset to the size that was listed, because it may be growing.

    A file that was replaced is sent as it is now. A file that became shorter is not sent.
    """
    path = listed.path
    try:
        file = tree.open(path)
    except (OSError, BlockedError) as error:
        deleted = isinstance(error, FileNotFoundError | BlockedError)
        reason = "it was deleted" if deleted else f"it cannot be read: {error}"
        stream.send({"path": path, "skipped": reason})
        return
    with file:
        status = os.fstat(file.fileno())
        size, mtime_ns = listed.status.st_size, listed.status.st_mtime_ns
        if status.st_ino != listed.status.st_ino:
            size, mtime_ns, offset = status.st_size, status.st_mtime_ns, 0
        stream.send({"path": path, "offset": offset, "size": size, "mtime_ns": mtime_ns})
        file.seek(offset)
        while offset < size:
            data = file.read(min(CHUNK_BYTES, size - offset))
            if not data:
                stream.send({"path": path, "skipped": "it became shorter"})
                return
            stream.send({"bytes": len(data)})
            stream.write(data)
            offset += len(data)
        stream.flush()


# --- receiving --------------------------------------------------------------------------------


def receive_files(
    folder: Path,
    wanted: Sequence[str],
    stream: Stream,
    progress: Progress = lambda _received, _all: None,
    *,
    every_name: bool = False,
) -> Fetched:
    """Receive files of a run from `send_files`.

    Args:
        folder: the destination; it is created, accessible by its owner alone.
        wanted: the same patterns as for `send_files`: files that match none are refused.
        stream: the connection to the host.
        progress: called as bytes arrive.
        every_name: also receive files with names that programs act on.

    Raises:
        ConflictError: another process fetches into the same folder.
        NotFoundError: a pattern matches nothing.
        NotPermittedError: the host sends a path that leads out of the run, or was not requested.
        UnavailableError: the connection is lost, or the disk is full; received bytes are kept.
    """
    patterns = list(parse_wanted(wanted).values())
    files = _parse_listing(stream.receive(), patterns, stream)
    refused = [] if every_name else [path for path in files if _ACTED_ON.search(path)]
    for path in refused:
        del files[path]
    with naming_folder(folder), _lock(folder) as tree:
        stale = _find_stale(tree, files)
        needs = _find_needs(tree, files)
        stream.send({"needs": needs})
        receiver = _Receiver(tree, stream, files, needs, progress)
        for path in needs:
            receiver.receive(path)
        for path in stale:
            tree.remove(path)
    return Fetched(
        files=receiver.count,
        size=receiver.size,
        unchanged=len(files) - len(needs),
        warnings=(*_warn_refused(refused), *receiver.warnings),
    )


def _parse_listing(
    record: Mapping[str, Any], patterns: Sequence[re.Pattern[str]], stream: Stream
) -> dict[str, RunFile]:
    listed = record.get("files")
    if not isinstance(listed, dict):
        raise stream.refuse("no list of files")
    _check_number(listed)
    check_paths(listed)
    files = {}
    for path, about in listed.items():
        if not any(pattern.fullmatch(path) for pattern in patterns):
            raise NotPermittedError(
                f"refused the file '{path}': it was not asked for",
                hint="use the same version of Echelon on both ends",
            )
        size, mtime_ns, executable = about if isinstance(about, list) and len(about) == 3 else "???"
        files[path] = _parse_file(size, mtime_ns, executable is True, stream)
    return files


def _check_number(paths: Iterable[str]) -> None:
    entries: set[str] = set()
    for path in paths:
        entries.update((path, *folders(path)))
        if len(entries) > MOST_ENTRIES:
            raise UsageError(
                f"more than {MOST_ENTRIES:,} files and folders match",
                hint="name fewer, such as one attempt's logs: echelon fetch RUN 'logs/1.*'",
            )


def _warn_refused(paths: Sequence[str]) -> list[str]:
    if not paths:
        return []
    some = f"{', '.join(paths[:3])}{' …' if paths[3:] else ''}"
    number = counted(len(paths), "file")
    return [f"{number} left out, because programs such as git act on their names: {some}"]


def _parse_file(size: Any, mtime_ns: Any, executable: bool, stream: Stream) -> RunFile:
    count, time_ns = to_count(size), to_count(mtime_ns, below=1 << 63)
    if count is None or time_ns is None:
        raise stream.refuse("a file without size or time")
    return RunFile(count, time_ns, executable)


@contextmanager
def _lock(folder: Path) -> Iterator[Tree]:
    """Lock a folder, so that no other process fetches into it."""
    make_private(folder)
    busy = ConflictError(f"another process fetches into {folder}", hint="wait until it is done")
    with locked(folder, busy), Tree(folder) as tree:
        yield tree


def _find_needs(tree: Tree, files: Mapping[str, RunFile]) -> dict[str, int]:
    """Return the needed files, and how many bytes of each an earlier call has received."""
    needs = {}
    for path, file in files.items():
        here = tree.find(path)
        is_file = here and stat.S_ISREG(here.st_mode)
        if here and is_file and (here.st_size, here.st_mtime_ns) == (file.size, file.mtime_ns):
            continue
        part = tree.find(_part(path, file))
        resumes = part and stat.S_ISREG(part.st_mode) and part.st_size <= file.size
        needs[path] = part.st_size if part and resumes else 0
    return needs


def _part(path: str, file: RunFile) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.echelon-{_digest(name)}-{file.size}-{file.mtime_ns}.part"


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:16]


def _find_stale(tree: Tree, files: Mapping[str, RunFile]) -> list[str]:
    """Return the `.part` files of listed files whose sources have changed since."""
    names: dict[str, set[str]] = {}
    current = {_part(path, file) for path, file in files.items()}
    for path in files:
        folder, slash, name = path.rpartition("/")
        names.setdefault(f"{folder}{slash}", set()).add(_digest(name))
    return [
        f"{folder}{name}"
        for folder, digests in names.items()
        for name in tree.list_names(folder.rstrip("/"))
        if (found := _PART.fullmatch(name))
        and found[1] in digests
        and f"{folder}{name}" not in current
    ]


class _Receiver:
    """Receives the needed files, in the order in which they were requested."""

    def __init__(
        self,
        tree: Tree,
        stream: Stream,
        files: Mapping[str, RunFile],
        needs: Mapping[str, int],
        progress: Progress,
    ) -> None:
        self._tree, self._stream, self._progress = tree, stream, progress
        self._files, self._needs = files, needs
        self._total = sum(files[path].size - offset for path, offset in needs.items())
        self.count, self.size = 0, 0
        self.warnings: list[str] = []

    def receive(self, path: str) -> None:
        """Receive one file."""
        header, listed = self._stream.receive(), self._files[path]
        if header.get("path") != path:
            raise self._stream.refuse(f"another file than '{path}'")
        if "skipped" in header:
            self._skip(path, header)
            return
        size, mtime_ns = header.get("size"), header.get("mtime_ns")
        file = _parse_file(size, mtime_ns, listed.executable, self._stream)
        same = (file.size, file.mtime_ns) == (listed.size, listed.mtime_ns)
        offset = header.get("offset")
        if offset != (self._needs[path] if same else 0):
            raise self._stream.refuse(f"'{path}' from another byte than asked for")
        part = _part(path, file)
        if not offset:
            self._tree.remove(part)
        if self._fill(path, part, file, offset):
            self._tree.rename(part, path.rpartition("/")[2])
            self.count += 1
        else:
            self._tree.remove(part)
        if not same:
            self._tree.remove(_part(path, listed))

    def _fill(self, path: str, part: str, file: RunFile, offset: int) -> bool:
        """Write the received bytes; return whether the file is complete."""
        with self._tree.append(part) as target:
            if os.fstat(target.fileno()).st_size != offset:
                raise ConflictError(
                    f"another process writes to {self._tree.root / part}",
                    hint="wait until it is done, then fetch again",
                )
            while offset < file.size:
                frame = self._stream.receive()
                if "skipped" in frame:
                    self._skip(path, frame)
                    return False
                count = to_count(frame.get("bytes"), below=CHUNK_BYTES + 1)
                if not count or count > file.size - offset:
                    raise self._stream.refuse(f"a wrong number of bytes for '{path}'")
                offset += count
                # In small pieces, so that little is sent again after a lost connection.
                while count:
                    data = self._stream.read(min(count, _PIECE_BYTES))
                    target.write(data)
                    count -= len(data)
                    self.size += len(data)
                    self._progress(self.size, max(self._total, self.size))
            target.flush()
            os.fchmod(target.fileno(), 0o700 if file.executable else 0o600)
            os.fsync(target.fileno())
            os.utime(target.fileno(), ns=(file.mtime_ns, file.mtime_ns))
        return True

    def _skip(self, path: str, frame: Mapping[str, Any]) -> None:
        self.warnings.append(f"{path} was skipped: {str(frame['skipped'])[:200]}")
