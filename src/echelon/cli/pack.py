"""`echelon pack`: folders of images, made into files that training reads as fast as memory."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echelon.cli import console
from echelon.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from echelon.train.images.folders import Listing
    from echelon.train.images.packfile import Header
    from echelon.train.images.partial import Plan

app = typer.Typer(rich_markup_mode=None)

LINE_EVERY_S = 5.0
_NAMED = 20
"""Broken images that are named one by one."""


@app.command()
def pack(
    source: Annotated[Path, typer.Argument(help="Folder of images.", show_default=False)],
    target: Annotated[
        Path | None,
        typer.Argument(help="Folder, or a file ending in .packed.", show_default=False),
    ] = None,
    *,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this one, such as train.", show_default=False),
    ] = None,
    size: Annotated[
        str,
        typer.Option(
            metavar="N|HxW",
            help="Resize and crop; without it all must be alike.",
            show_default=False,
        ),
    ] = "",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per CPU.")
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave broken images out, and list them.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every byte of the packed file SOURCE.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs to read.")] = False,
) -> None:
    """Pack a folder of images into one file that loads fast.

    Class folders, or a data set with train and val, as TinyImageNet: one file for each. When it is
    interrupted, the same command goes on where it was.

    Example: echelon pack tiny-imagenet-200
    """
    if verify:
        _verify(source, as_json=as_json)
        return
    try:
        from echelon.train.images import decoding, packing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise UnavailableError(
            "packing images needs pillow, which is not installed",
            hint="pip install 'echelon[data]'",
        ) from error

    wanted = _parse_size(size)
    listings = _list(source, split or [])
    targets = _name_targets(source, target, list(listings))
    plans = [
        packing.make_plan(listing, targets[name], size=wanted) for name, listing in listings.items()
    ]
    # All are looked at before the first is begun: a conflict should not come after an hour.
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
    _print([_describe(path, header, state="whole", skipped={})], as_json=as_json)


def _parse_size(text: str) -> tuple[int, int] | None:
    """Return height and width."""
    if not text:
        return None
    words = text.lower().split("x")
    if len(words) > 2 or not all(w.isascii() and w.isdecimal() and int(w) for w in words):
        raise UsageError(f"'{text}' is not a size", hint="write --size 64, or --size 48x64")
    return int(words[0]), int(words[-1])


def _list(source: Path, asked: list[str]) -> "dict[str, Listing]":
    """Return what is to be packed, by split; a data set without splits is under ''."""
    from echelon.train.images.folders import find_splits, list_folder, list_split  # noqa: PLC0415

    splits, unlabelled = find_splits(source)
    for name in [] if asked else unlabelled:
        console.note(f"{source / name} has no labels, and is left out")
    if asked or splits:
        return {name: list_split(source, name) for name in asked or splits}
    return {"": list_folder(source)}


def _name_targets(source: Path, target: Path | None, splits: list[str]) -> dict[str, Path]:
    """Return the file for each split: in TARGET, or in the data set; one folder's is beside it."""
    from echelon.train.images.packfile import SUFFIX  # noqa: PLC0415

    whole = source.resolve()
    if target and target.suffix == SUFFIX:
        if len(splits) > 1:
            raise UsageError(
                f"{' and '.join(splits)} cannot both be {target}",
                hint="name a folder, or one of them: --split " + splits[0],
            )
        return {splits[0]: target}
    if target and target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is no folder", hint=f"name one, or a file that ends in {SUFFIX}"
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
        console.note(f"left out {len(skipped)} broken images:")
    for name, why in list(skipped.items())[:_NAMED]:
        console.note(f"  {name}: {why}")
    if len(skipped) > _NAMED:
        console.note(f"  and {len(skipped) - _NAMED} more: --json names them all")


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far it is: a bar where a person watches, a line now and then elsewhere."""
    if not (sys.stderr and sys.stderr.isatty()):
        yield _Lines(name)
        return
    from rich import progress as bars  # noqa: PLC0415  worth its 60 ms only where a bar is drawn
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
                # What an interrupted run had done tells nothing about the speed of this one.
                bar.update(task, completed=done)
                bar.start_task(task)
            speed = f", {bar.tasks[0].speed:,.0f} images/s" if bar.tasks[0].speed else ""
            count = f"{done:,} of {total:,}{speed}"
            bar.update(task, total=total, completed=done, count=count)

        yield show


class _Lines:
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
