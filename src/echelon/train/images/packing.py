"""Folders of images made into one packed file, which appears when it is whole.

Until then there are two files beside it: `NAME.packed.partial` with the images so far, and
`NAME.packed.journal`, whose lines say how many of them are surely on the disk. After a SIGKILL the
same command goes on from the last line; docs/packed.md has the details.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echelon.core.rundir import sync_folder
from echelon.errors import ConflictError, EchelonError, UnavailableError, UsageError
from echelon.train.images import packfile
from echelon.train.images.decoding import Block, BrokenImageError, Flaw, Form, decode_blocks, load
from echelon.train.images.folders import Listing
from echelon.train.images.packfile import Header

RECORD_EVERY_S = 2.0
_BLOCK_IMAGES = 64
_BLOCK_BYTES = 1 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Progress = Callable[[int, int], None]
"""Told how many images of how many are done."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be packed, and where."""

    listing: Listing
    target: Path
    form: Form
    header: Header
    """What the file will say, as far as it is known before the images are read."""

    @property
    def partial(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def journal(self) -> Path:
        return self.target.with_name(f"{self.target.name}.journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A file that was made."""

    header: Header
    skipped: dict[str, str]
    """Broken images that were left out, and what is wrong with each."""


def make_plan(listing: Listing, target: Path, *, size: tuple[int, int] | None) -> Plan:
    """Decide what can be decided before the images are read.

    Args:
        listing: the images.
        target: the file to make.
        size: height and width to bring them to; None leaves them the first image's.

    Raises:
        UsageError: no image can be read.
    """
    height, width = size or _probe(listing)
    header = Header(
        count=len(listing.entries),
        height=height,
        width=width,
        classes=listing.classes,
        words=listing.words,
        source=listing.source,
        skipped=0,
        recipe=_hash_recipe(listing, size),
        labels_offset=0,
        labels_sha256="",
        images_offset=0,
        images_sha256="",
    )
    return Plan(
        listing=listing,
        target=target,
        form=Form(height=height, width=width, fit=size is not None),
        header=packfile.place(header),
    )


def is_up_to_date(plan: Plan) -> bool:
    """Tell whether the file is there, made from the same images with the same settings.

    Raises:
        ConflictError: there is another file.
        UsageError: there is a folder.
    """
    if plan.target.is_dir():
        raise UsageError(f"{plan.target} is a folder", hint="name another TARGET")
    if not plan.target.exists():
        return False
    try:
        found = packfile.read_header(plan.target)
    except EchelonError as error:
        raise ConflictError(
            f"{plan.target} exists already, and {error.message}", hint="to replace it: --force"
        ) from error
    if found.recipe != plan.header.recipe:
        raise ConflictError(
            f"{plan.target} exists already, made from other images or settings",
            hint="to replace it: --force",
        )
    return True


def remove_leftovers(plan: Plan) -> None:
    """Remove what a run left that was killed after its file had appeared."""
    if not plan.partial.exists():
        plan.journal.unlink(missing_ok=True)


def pack(
    plan: Plan,
    *,
    workers: int,
    skip_broken: bool = False,
    progress: Progress = lambda *_: None,
    note: Note = lambda _: None,
    record_every_s: float = RECORD_EVERY_S,
) -> Packed:
    """Make the file, or go on with what an interrupted run left.

    Args:
        plan: what to make; what is in its place will be replaced.
        workers: processes that decode.
        skip_broken: leave broken images out instead of giving up.
        progress: told how far it is, beginning with what was there.
        note: told what a person should know.
        record_every_s: how much work a SIGKILL may cost.

    Raises:
        UsageError: an image is broken, or of another size.
        ConflictError: somebody else is packing the same file.
        UnavailableError: an image cannot be read, or the file not be written.
    """
    total = len(plan.listing.entries)
    with _open_partial(plan, note) as partial:
        if partial.skipped and not skip_broken:
            raise _broken(plan, *next(iter(partial.skipped.items())))
        _check_room(plan, partial)
        progress(partial.listed, total)
        recorded = time.monotonic()
        with closing(_decode(plan, partial.listed, workers)) as blocks:
            for block in blocks:
                _check_flaws(plan, partial.listed, block.flaws, skip_broken=skip_broken)
                partial.append(block)
                progress(partial.listed, total)
                if time.monotonic() - recorded >= record_every_s:
                    partial.record()
                    recorded = time.monotonic()
        header = partial.finish()
    names = {plan.listing.entries[place].file: why for place, why in partial.skipped.items()}
    return Packed(header=header, skipped=names)


def _probe(listing: Listing) -> tuple[int, int]:
    """Return height and width of the first image that can be read."""
    for number in range(len(listing.entries)):
        with suppress(BrokenImageError):
            image = load(listing.path(number))
            return image.height, image.width
    raise UsageError(
        f"none of the {len(listing.entries)} images in {listing.folder} can be read",
        hint="check that they were fetched and unpacked whole",
    )


def _hash_recipe(listing: Listing, size: tuple[int, int] | None) -> str:
    """Return a hash of everything that decides the file's content.

    Images count by name and size, not by date: a copy of the data set is the same data set.
    """
    settings = [packfile.VERSION, listing.source, size, listing.classes, listing.words]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for entry in listing.entries:
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()


def _decode(plan: Plan, first: int, workers: int) -> Generator[Block, None, None]:
    """Yield the images from the given one on."""
    count = len(plan.listing.entries)
    step = max(1, min(_BLOCK_IMAGES, _BLOCK_BYTES // plan.header.image_bytes))
    paths = (
        [str(plan.listing.path(number)) for number in range(start, min(start + step, count))]
        for start in range(first, count, step)
    )
    return decode_blocks(paths, plan.form, min(workers, -(-(count - first) // step)))


def _check_flaws(plan: Plan, first: int, flaws: tuple[Flaw, ...], *, skip_broken: bool) -> None:
    for flaw in flaws:
        path = plan.listing.path(first + flaw.place)
        if flaw.kind == "unreadable":
            raise UnavailableError(
                f"cannot read {path}: {flaw.text}", hint="check the file (ls -l, cat)"
            )
        if flaw.kind == "size":
            height, width = plan.form.height, plan.form.width
            raise UsageError(
                f"{path} is {flaw.text}, and the first image is {height}×{width}",
                hint="bring all to one size, for example: --size "
                + (f"{height}" if height == width else f"{height}x{width}"),
            )
        if not skip_broken:
            raise _broken(plan, first + flaw.place, flaw.text)


def _broken(plan: Plan, place: int, why: str) -> UsageError:
    return UsageError(
        f"{plan.listing.path(place)} is broken: {why}",
        hint="get the file again, or leave out what is broken: --skip-broken",
    )


# --- the unfinished file ------------------------------------------------------------------------


class _Partial:
    """The unfinished file and its journal, while one process holds them."""

    def __init__(self, plan: Plan, handle: int) -> None:
        self._plan, self._handle = plan, handle
        self._digest = hashlib.sha256()
        self.stored = 0
        """Images in the file."""
        self.listed = 0
        """Images of the listing that are done with: stored, or skipped."""
        self.skipped: dict[int, str] = {}
        """Broken images by their place in the listing, and what is wrong with each."""
        self._recorded: set[int] = set()

    @property
    def _end(self) -> int:
        return self._plan.header.images_offset + self.stored * self._plan.header.image_bytes

    def resume(self, note: Note) -> None:
        """Go on from the last line of the journal, or begin anew."""
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
                note(f"{self._plan.target}: going on after {self.listed:,} images")
                return
            note(f"{self._plan.partial} is damaged: starting anew")
        elif first and first != _first_line(self._plan):
            note(f"{self._plan.partial} is of other images or settings: starting anew")
        self._plan.journal.unlink(missing_ok=True)
        os.truncate(self._handle, 0)
        self._write_line(_first_line(self._plan))

    def append(self, block: Block) -> None:
        """Add images; not recorded yet."""
        with _writing(self._plan):
            _write_all(self._handle, block.images, self._end)
        self._digest.update(block.digests)
        self.skipped |= {self.listed + flaw.place: flaw.text for flaw in block.flaws}
        self.stored += block.files - len(block.flaws)
        self.listed += block.files

    def record(self) -> None:
        """Bring all images to the disk, then say so in the journal: never the other way round."""
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
        """Add labels and header, and let the file appear."""
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
                hint="check that they were fetched and unpacked whole",
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
        """Keep what is worth keeping for the next time."""
        if self.stored:
            with suppress(EchelonError):  # the last record holds
                self.record()
        else:
            self._plan.partial.unlink(missing_ok=True)
            self._plan.journal.unlink(missing_ok=True)

    def _write_line(self, record: dict[str, Any]) -> None:
        with self._plan.journal.open("a") as file:
            file.write(json.dumps(record) + "\n")


@contextmanager
def _open_partial(plan: Plan, note: Note) -> Iterator[_Partial]:
    plan.target.parent.mkdir(parents=True, exist_ok=True)
    handle = _lock(plan.partial)
    try:
        partial = _Partial(plan, handle)
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
    """Open the unfinished file, for one process at a time."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise ConflictError(
                f"another process is writing {path}", hint="wait for it, or name another TARGET"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
        # Between the two calls another process may have finished, and renamed what we opened.
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
    """Return the first line, the records after it, and the length of what is whole."""
    lines, whole = [], 0
    content = path.read_bytes() if path.exists() else b""
    for line in content.splitlines(keepends=True):
        try:
            lines.append(json.loads(line))
        except ValueError:
            break  # we were killed while it was written
        if not line.endswith(b"\n"):
            lines.pop()
            break
        whole += len(line)
    return (lines[0], lines[1:], whole) if lines else ({}, [], 0)


@contextmanager
def _writing(plan: Plan) -> Iterator[None]:
    """Say what to do when the disk is full."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot write {plan.partial}: {error.strerror}",
            hint="make room (df -h, quota): the same command then goes on where it was",
        ) from error


def _write_all(handle: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


def _check_room(plan: Plan, partial: _Partial) -> None:
    """Find out now, rather than after an hour, that the disk is too small."""
    needed = (len(plan.listing.entries) - partial.listed) * plan.header.image_bytes
    free = shutil.disk_usage(plan.target.parent).free
    if free < needed:
        raise UnavailableError(
            f"{plan.target} needs {needed / 1e9:.1f} GB more, and there are {free / 1e9:.1f} GB "
            f"left on {plan.target.parent}",
            hint="make room, or name another TARGET",
        )
