"""Folders of images made into one packed file, which appears when it is whole.

Until then there are two files beside it: `NAME.packed.partial` with the images so far, and
`NAME.packed.journal`, whose lines say how many of them are surely on the disk. After a SIGKILL the
same command goes on from the last line; docs/packed.md has the details.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import ConflictError, EchelonError, UnavailableError, UsageError
from echelon.train.images import packfile
from echelon.train.images.decoding import Block, BrokenImageError, Flaw, Form, decode_blocks, load
from echelon.train.images.folders import Listing
from echelon.train.images.packfile import Header
from echelon.train.images.partial import Note, Partial, Plan, open_partial

RECORD_EVERY_S = 2.0
_BLOCK_IMAGES = 64
_BLOCK_BYTES = 1 << 20

Progress = Callable[[int, int], None]
"""Told how many images of how many are done."""


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
    with open_partial(plan, note) as partial:
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


def _check_room(plan: Plan, partial: Partial) -> None:
    """Find out now, rather than after an hour, that the disk is too small."""
    needed = (len(plan.listing.entries) - partial.listed) * plan.header.image_bytes
    free = shutil.disk_usage(plan.target.parent).free
    if free < needed:
        raise UnavailableError(
            f"{plan.target} needs {needed / 1e9:.1f} GB more, and there are {free / 1e9:.1f} GB "
            f"left on {plan.target.parent}",
            hint="make room, or name another TARGET",
        )
