"""The unfinished packed file and its journal.

packing.py fills it. The journal's first line identifies what is being packed. Each further line
records how many images were safely on disk when it was written. A lock allows one writer at a time.
"""

import errno
import fcntl
import hashlib
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.core.atomic_file import sync_folder
from echelon.core.frozen import frozen
from echelon.errors import ConflictError, EchelonError, UnavailableError, UsageError
from echelon.train.images import packfile
from echelon.train.images.decoding import Block, Form
from echelon.train.images.folders import Listing
from echelon.train.images.packfile import Header

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Note = Callable[[str], None]
"""Called with a message for the user."""


@frozen
class Plan:
    """What to pack, and where."""

    listing: Listing
    target: Path
    form: Form
    header: Header
    """The header, as far as it is known before the images are read."""

    @property
    def partial(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def journal(self) -> Path:
        return self.target.with_name(f"{self.target.name}.journal")


class Partial:
    """The unfinished file and its journal, locked by this process."""

    def __init__(self, plan: Plan, handle: int) -> None:
        self._plan, self._handle = plan, handle
        self._digest = hashlib.sha256()
        self.stored = 0
        """Number of images in the file."""
        self.listed = 0
        """Number of images of the listing that are stored or skipped."""
        self.skipped: dict[int, str] = {}
        """Index of a broken image in the listing → what is wrong with it."""
        self._recorded: set[int] = set()

    @property
    def _end(self) -> int:
        return self._plan.header.images_offset + self.stored * self._plan.header.image_bytes

    def resume(self, note: Note) -> None:
        """Continue from the last record of the journal, or start over."""
        first, records, whole = _read_journal(self._plan.journal)
        if first == _first_line(self._plan) and records:
            last = records[-1]
            header = replace(self._plan.header, count=last["stored"])
            with open(self._handle, "rb", closefd=False) as file:
                digest = packfile.hash_images(file, header, header.count, lambda *_: None)
            if digest.hexdigest() == last["sha256"]:
                self._digest, self.stored, self.listed = digest, last["stored"], last["listed"]
                for record in records:
                    self.skipped |= {int(place): why for place, why in record["skipped"].items()}
                self._recorded = set(self.skipped)
                os.truncate(self._handle, self._end)
                os.truncate(self._plan.journal, whole)
                note(f"{self._plan.target}: continuing after {self.listed:,} images")
                return
            note(f"{self._plan.partial} is damaged; starting over")
        elif first and first != _first_line(self._plan):
            note(f"{self._plan.partial} has other images or settings; starting over")
        self._plan.journal.unlink(missing_ok=True)
        os.truncate(self._handle, 0)
        self._write_line(_first_line(self._plan))

    def append(self, block: Block) -> None:
        """Append images, without recording them yet."""
        with _writing(self._plan):
            _write_all(self._handle, block.images, self._end)
        self._digest.update(block.digests)
        self.skipped |= {self.listed + flaw.place: flaw.text for flaw in block.flaws}
        self.stored += block.files - len(block.flaws)
        self.listed += block.files

    def record(self) -> None:
        """Sync all images to disk, then record them in the journal; the order matters."""
        with _writing(self._plan):
            os.fsync(self._handle)
            new = {place: why for place, why in self.skipped.items() if place not in self._recorded}
            self._write_line(
                {
                    "listed": self.listed,
                    "stored": self.stored,
                    "sha256": self._digest.hexdigest(),
                    "skipped": new,
                }
            )
            self._recorded |= new.keys()

    def finish(self) -> Header:
        """Write labels and header, and rename the file to its final name."""
        plan = self._plan
        entries = plan.listing.entries
        labels = array(
            "q", (entry.label for place, entry in enumerate(entries) if place not in self.skipped)
        )
        if sys.byteorder == "big":
            labels.byteswap()
        header = replace(
            plan.header,
            count=self.stored,
            skipped=len(self.skipped),
            labels_sha256=hashlib.sha256(labels.tobytes()).hexdigest(),
            images_sha256=self._digest.hexdigest(),
        )
        if not self.stored:
            raise UsageError(
                f"none of the {len(entries)} images in {plan.listing.folder} can be read",
                hint="check that the data set was downloaded and extracted completely",
            )
        with _writing(plan):
            _write_all(self._handle, labels.tobytes(), header.labels_offset)
            _write_all(self._handle, packfile.render_head(header), 0)
            os.fsync(self._handle)
            plan.partial.replace(plan.target)
            sync_folder(plan.target.parent)
            plan.journal.unlink(missing_ok=True)
        return header

    def leave(self) -> None:
        """Record the progress for the next run, or remove the files if there is none."""
        if self.stored:
            with suppress(EchelonError):  # the last record remains valid
                self.record()
        else:
            self._plan.partial.unlink(missing_ok=True)
            self._plan.journal.unlink(missing_ok=True)

    def _write_line(self, record: dict[str, Any]) -> None:
        with self._plan.journal.open("a") as file:
            file.write(json.dumps(record) + "\n")


@contextmanager
def open_partial(plan: Plan, note: Note) -> Iterator[Partial]:
    """Open the unfinished file, or create it; on failure, the progress is kept."""
    plan.target.parent.mkdir(parents=True, exist_ok=True)
    handle = _lock(plan.partial)
    try:
        partial = Partial(plan, handle)
        with _writing(plan):
            partial.resume(note)
        try:
            yield partial
        except BaseException:  # Ctrl-C as well
            partial.leave()
            raise
    finally:
        os.close(handle)


def _lock(path: Path) -> int:
    """Open and lock the unfinished file."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise ConflictError(
                f"another process is writing {path}",
                hint="wait until it has finished, or choose another TARGET",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
        # Between the two calls, another process may have finished and renamed the file.
        if path.exists() and os.path.samestat(path.stat(), os.fstat(handle)):
            return handle
        os.close(handle)


def _first_line(plan: Plan) -> dict[str, Any]:
    return {
        "recipe": plan.header.recipe,
        "height": plan.header.height,
        "width": plan.header.width,
        "images_offset": plan.header.images_offset,
    }


def _read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Return the first line, the records after it, and the length of all complete lines."""
    lines, whole = [], 0
    content = path.read_bytes() if path.exists() else b""
    for line in content.splitlines(keepends=True):
        try:
            lines.append(json.loads(line))
        except ValueError:
            break  # the writer was killed in the middle of this line
        if not line.endswith(b"\n"):
            lines.pop()
            break
        whole += len(line)
    return (lines[0], lines[1:], whole) if lines else ({}, [], 0)


@contextmanager
def _writing(plan: Plan) -> Iterator[None]:
    """Turn a write error, such as a full disk, into one with a hint."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot write {plan.partial}: {error.strerror}",
            hint="free some space (df -h, quota), then run the same command again to continue",
        ) from error


def _write_all(handle: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written
