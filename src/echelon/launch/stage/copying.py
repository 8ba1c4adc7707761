"""A node's copy in the making: some threads fill it, others pass on what is there so far."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.core.files import for_all
from echelon.errors import UnavailableError
from echelon.launch.stage.store import CHUNK, Stage, new_digest


class StalledError(UnavailableError):
    """There is no copy, and there will be none."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="look at the node's disk and network, or leave out --stage")


@dataclass(slots=True)
class _Growing:
    """A file that is being written."""

    handle: int
    digest: Any = field(default_factory=new_digest)
    size: int = 0


class Copy:
    """A copy in the making, which some threads fill and others pass on."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.copied = 0
        """Bytes that were copied to this node."""
        self._changed = threading.Condition()
        self._done = set(stage.manifest.files) - set(stage.missing)
        self._growing: dict[int, _Growing] = {}
        self._failure = ""

    @property
    def lacking(self) -> dict[int, int]:
        """Files that are not complete, by their position, and how much of each is there."""
        with self._changed:
            return {
                position: self._growing[position].size if position in self._growing else 0
                for position in self.stage.manifest.files
                if position not in self._done
            }

    def begin(self, position: int) -> int:
        """Begin a file, or go on with it; return how much of it is there."""
        if position not in self._growing:
            with _writing(self.stage.folder):
                handle = self.stage.create(position)
            with self._changed:
                self._growing[position] = _Growing(handle)
        return self._growing[position].size

    def add(self, position: int, data: bytes) -> None:
        """Write more of a file.

        Raises:
            StalledError: the disk is full, say, or the copy has failed.
        """
        if self._failure:
            raise StalledError(self._failure)
        growing, view = self._growing[position], memoryview(data)
        growing.digest.update(data)
        with _writing(self.stage.folder):
            while view:
                view = view[os.write(growing.handle, view) :]
        with self._changed:
            growing.size += len(data)
            self.copied += len(data)
            self._changed.notify_all()

    def finish(self, position: int, expected: bytes = b"") -> None:
        """Close a file that is complete.

        Raises:
            StalledError: it has another digest than expected.
        """
        growing = self._growing[position]
        if expected and expected != growing.digest.digest():
            raise StalledError(f"{self.stage.manifest.entries[position].path} arrived damaged")
        with _writing(self.stage.folder):
            self.stage.complete(position, growing.handle, growing.digest.hexdigest())
        with self._changed:
            self._done.add(position)
            del self._growing[position]
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        """End the copy, for those who wait for it too."""
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()

    def wait(self, position: int, beyond: int, timeout_s: float) -> tuple[int, str]:
        """Wait until a file has more bytes; return how many, and its digest if it is complete.

        Raises:
            StalledError: the copy has failed.
        """

        def size() -> int:
            return self._growing[position].size if position in self._growing else 0

        with self._changed:
            self._changed.wait_for(
                lambda: position in self._done or size() > beyond or bool(self._failure), timeout_s
            )
            if position in self._done:
                return self.stage.manifest.entries[position].size, self.stage.digests[position]
            if self._failure:
                raise StalledError(self._failure)
            return size(), ""

    def close(self) -> None:
        """Close the files that are not complete."""
        for growing in self._growing.values():
            os.close(growing.handle)
        self._growing.clear()


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of this node's disk into one that no other node can help with."""
    try:
        yield
    except OSError as error:
        raise StalledError(f"cannot write to {folder.parent}: {error.strerror}") from error


def read_all(source: Path, copy: Copy, beat: Callable[[], None]) -> None:
    """Copy what is lacking from storage, many files at the same time.

    Args:
        source: what is staged: a folder, or a file.
        copy: to fill.
        beat: called whenever something was read.

    Raises:
        OSError: a file cannot be read.
        StalledError: a file has changed, or cannot be written, or the copy has failed.
    """
    folder = source if source.is_dir() else source.parent
    for_all(lambda position: _read_file(folder, position, copy, beat), list(copy.lacking))


def _read_file(folder: Path, position: int, copy: Copy, beat: Callable[[], None]) -> None:
    entry = copy.stage.manifest.entries[position]
    with (folder / entry.path).open("rb", buffering=0) as file:
        seen = file.seek(copy.begin(position))
        while seen <= entry.size and (data := file.read(CHUNK)):
            beat()
            seen += len(data)
            if seen <= entry.size:
                copy.add(position, data)
        mtime_ns = os.fstat(file.fileno()).st_mtime_ns
    if seen != entry.size or entry.mtime_ns not in (0, mtime_ns):
        raise StalledError(f"{folder / entry.path} was changed while it was copied")
    copy.finish(position)
