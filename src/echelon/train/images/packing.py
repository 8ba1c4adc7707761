"""Pack a directory of images into one file, which appears only when it is complete.

Until then, there are two files beside it: `NAME.packed.partial` with the images so far, and
`NAME.packed.journal`, which records how many of them are safely on disk. After a SIGKILL, the same
command continues from the last record; see docs/packed.md.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path

from echelon.core.frozen import frozen
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
"""Called with the number of images done and their total."""


@frozen
class Packed:
    """Result of packing one file."""

    header: Header
    skipped: dict[str, str]
    """Skipped image → what is wrong with it."""


def make_plan(listing: Listing, target: Path, *, size: tuple[int, int] | None) -> Plan:
    """Prepare what can be determined before the images are read.

    Args:
        listing: the images.
        target: the file to write.
        size: height and width to resize to; None requires the size of the first image.

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
    """Tell whether the file exists and was packed from the same images with the same settings.

    Raises:
        ConflictError: another file exists.
        UsageError: the target is a directory.
    """
    if plan.target.is_dir():
        raise UsageError(f"{plan.target} is a directory", hint="choose another TARGET")
    if not plan.target.exists():
        return False
    try:
        found = packfile.read_header(plan.target)
    except EchelonError as error:
        raise ConflictError(
            f"{plan.target} already exists, but {error.message}", hint="replace it with --force"
        ) from error
    if found.recipe != plan.header.recipe:
        raise ConflictError(
            f"{plan.target} already exists, packed from other images or with other settings",
            hint="replace it with --force",
        )
    return True


def remove_leftovers(plan: Plan) -> None:
    """Remove the journal left by a process that was killed after its file had appeared."""
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
    """Pack the file, or continue an interrupted run.

    Args:
        plan: what to pack; an existing file is replaced.
        workers: number of processes that decode images.
        skip_broken: skip broken images instead of failing.
        progress: called with the progress, including images of an interrupted run.
        note: called with messages for the user.
        record_every_s: interval between records, the most work that a SIGKILL can cost.

    Raises:
        UsageError: an image is broken or has a different size.
        ConflictError: another process is packing the same file.
        UnavailableError: an image cannot be read, or the file cannot be written.
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
    """Return the height and width of the first readable image."""
    for number in range(len(listing.entries)):
        with suppress(BrokenImageError):
            image = load(listing.path(number))
            return image.height, image.width
    raise UsageError(
        f"none of the {len(listing.entries)} images in {listing.folder} can be read",
        hint="check that the data set was downloaded and extracted completely",
    )


def _hash_recipe(listing: Listing, size: tuple[int, int] | None) -> str:
    """Return a hash of everything that determines the file's content.

    Images are identified by name and size, not by date, so that a copy of a data set is the same.
    """
    settings = [packfile.VERSION, listing.source, size, listing.classes, listing.words]
    digest = hashlib.sha256(json.dumps(settings).encode())
    for entry in listing.entries:
        digest.update(json.dumps(entry).encode())
    return digest.hexdigest()


def _decode(plan: Plan, first: int, workers: int) -> Generator[Block, None, None]:
    """Yield blocks of images, starting at the given one."""
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
                f"cannot read {path}: {flaw.text}", hint=f"check the file: ls -l {path}"
            )
        if flaw.kind == "size":
            height, width = plan.form.height, plan.form.width
            raise UsageError(
                f"{path} has size {flaw.text}, but the first image has {height}×{width}",
                hint="resize all images to one size, for example: --size "
                + (f"{height}" if height == width else f"{height}x{width}"),
            )
        if not skip_broken:
            raise _broken(plan, first + flaw.place, flaw.text)


def _broken(plan: Plan, place: int, why: str) -> UsageError:
    return UsageError(
        f"{plan.listing.path(place)} is broken: {why}",
        hint="download the file again, or skip broken images with --skip-broken",
    )


def _check_room(plan: Plan, partial: Partial) -> None:
    """Check the free disk space before packing."""
    needed = (len(plan.listing.entries) - partial.listed) * plan.header.image_bytes
    free = shutil.disk_usage(plan.target.parent).free
    if free < needed:
        raise UnavailableError(
            f"not enough disk space in {plan.target.parent}: {plan.target.name} needs "
            f"{needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            hint="free some space, or choose another TARGET",
        )
