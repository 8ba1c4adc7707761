"""`echelon pack`: convert directories of images into files that training reads at memory speed."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.help import PREPARE
from echelon.cli.run_options import AsJson
from echelon.core.units import counted
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.train.images.folders import Listing
    from echelon.train.images.packfile import Header
    from echelon.train.images.partial import Plan

app = typer.Typer(rich_markup_mode=None)

LINE_EVERY_S = 5.0
_NAMED = 20
"""Number of broken images that are listed."""


@app.command(rich_help_panel=PREPARE)
def pack(
    source: Annotated[Path, typer.Argument(help="Directory of images.", show_default=False)],
    target: Annotated[
        Path | None,
        typer.Argument(
            help="Output directory, or a file name ending in .packed.", show_default=False
        ),
    ] = None,
    *,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Pack only this split, such as train.", show_default=False
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            metavar="N|HxW",
            help="Resize and crop; otherwise all images must have the same size.",
            show_default=False,
        ),
    ] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes [default: one per CPU].")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Skip broken images and list them.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify all checksums of the packed file SOURCE.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be packed, without packing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Pack a directory of images into one file that loads fast.

    SOURCE has one directory per class, or splits such as train and val, each packed into its own
    file. To continue after an interruption, run the same command again.

    Example: echelon pack tiny-imagenet-200
    """
    if verify:
        _verify(source, as_json=as_json)
        return
    from echelon.train.images import decoding, packing  # noqa: PLC0415

    wanted = parse_size(size)
    listings = _list(source, split or [])
    targets = name_targets(source, target, list(listings))
    plans = [
        packing.make_plan(listing, targets[name], size=wanted) for name, listing in listings.items()
    ]
    # Check all targets before packing the first: a conflict must not end the command after an hour.
    states = [_find_state(plan, force=force) for plan in plans]
    facts = []
    for plan, state in zip(plans, states, strict=True):
        if dry_run or state == "up to date":
            facts.append(_describe(plan.target, plan.header, state=state, skipped={}))
            if not dry_run:
                packing.remove_leftovers(plan)
            continue
        with _progress(plan.target.name) as progress:
            done = packing.pack(
                plan,
                workers=workers or decoding.available_cpus(),
                skip_broken=skip_broken,
                progress=progress,
                note=console.note,
            )
        _note_skipped(done.skipped)
        facts.append(_describe(plan.target, done.header, state="packed", skipped=done.skipped))
    _print(facts, as_json=as_json)


def _verify(path: Path, *, as_json: bool) -> None:
    from echelon.train.images import packfile  # noqa: PLC0415

    with _progress(path.name) as progress:
        header = packfile.verify(path, progress)
    _print([_describe(path, header, state="verified", skipped={})], as_json=as_json)


def parse_size(text: str) -> tuple[int, int] | None:
    """Return height and width; None for an empty text."""
    if not text:
        return None
    words = text.lower().split("x")
    if len(words) > 2 or not all(w.isascii() and w.isdecimal() and int(w) for w in words):
        raise UsageError(
            f"invalid value for --size: '{text}'", hint="for example --size 64 or --size 48x64"
        )
    return int(words[0]), int(words[-1])


def _list(source: Path, asked: list[str]) -> "dict[str, Listing]":
    """Return the listings to pack, by split; a data set without splits is under ''."""
    from echelon.train.images.folders import find_splits, list_folder, list_split  # noqa: PLC0415

    splits, unlabelled = find_splits(source)
    for name in [] if asked else unlabelled:
        console.note(f"skipping {source / name}: no labels")
    if asked or splits:
        return {name: list_split(source, name) for name in asked or splits}
    return {"": list_folder(source)}


def name_targets(source: Path, target: Path | None, splits: list[str]) -> dict[str, Path]:
    """Return the file of each split: in TARGET or in the data set; without splits, beside it."""
    from echelon.train.images.packfile import SUFFIX  # noqa: PLC0415

    whole = source.resolve()
    if target and target.suffix == SUFFIX:
        if len(splits) > 1:
            raise UsageError(
                f"cannot pack several splits ({', '.join(splits)}) into one file: {target}",
                hint=f"use a directory as the target, or select one split: --split {splits[0]}",
            )
        return {splits[0]: target}
    if target and target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is not a directory", hint=f"use a directory, or a file ending in {SUFFIX}"
        )
    beside = source.parent if source.name not in ("", "..") else whole.parent
    return {
        name: (target or (source if name else beside)) / f"{name or whole.name}{SUFFIX}"
        for name in splits
    }


def _find_state(plan: "Plan", *, force: bool) -> str:
    from echelon.train.images.packing import is_up_to_date  # noqa: PLC0415

    if force and not plan.target.is_dir():
        return "to be replaced" if plan.target.exists() else "to be packed"
    if is_up_to_date(plan):
        return "up to date"
    return "to be continued" if plan.journal.exists() else "to be packed"


def _describe(
    path: Path, header: "Header", *, state: str, skipped: dict[str, str]
) -> dict[str, Any]:
    return {
        "file": str(path),
        "state": state,
        "images": header.count,
        "size": [header.height, header.width],
        "classes": len(header.classes) or None,
        "bytes": header.file_bytes,
        "skipped": skipped,
    }


def _print(facts: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        console.print_json(facts)
        return
    rows = [
        [
            fact["file"],
            fact["state"],
            f"{fact['images']:,}",
            "×".join(map(str, fact["size"])),
            str(fact["classes"] or "by number"),
            f"{fact['bytes'] / 1e6:,.1f}",
        ]
        for fact in facts
    ]
    console.print_table(["file", "state", "images", "size", "classes", "MB"], rows)


def _note_skipped(skipped: dict[str, str]) -> None:
    if skipped:
        console.note(f"skipped {counted(len(skipped), 'broken image')}:")
    for name, why in list(skipped.items())[:_NAMED]:
        console.note(f"  {name}: {why}")
    if len(skipped) > _NAMED:
        console.note(f"  and {len(skipped) - _NAMED} more; --json lists all of them")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress: a bar in a terminal, occasional lines elsewhere."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield ProgressLines(name)
        return
    from rich import progress as bars  # noqa: PLC0415  takes 60 ms to load
    from rich.console import Console  # noqa: PLC0415

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TextColumn("{task.fields[count]}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, start=False, count="")

        def show(done: int, total: int) -> None:
            if not bar.tasks[0].started:
                # Images packed before an interruption must not count towards the speed.
                bar.update(task, completed=done)
                bar.start_task(task)
            speed = f", {bar.tasks[0].speed:,.0f} images/s" if bar.tasks[0].speed else ""
            count = f"{done:,} of {total:,}{speed}"
            bar.update(task, total=total, completed=done, count=count)

        yield show


class ProgressLines:
    """Progress for a log file."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._first: tuple[float, int] | None = None
        self._last = clock()

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if not self._first:
            self._first = now, done
        if now - self._last < LINE_EVERY_S:
            return
        self._last = now
        began, before = self._first
        rate = (done - before) / (now - began) if now > began else 0.0
        left = f", {(total - done) / rate:,.0f} s left" if rate else ""
        console.note(f"{self._name}: {done:,} of {total:,} images, {rate:,.0f} images/s{left}")
