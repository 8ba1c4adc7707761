"""Folders of labelled images, as data sets come in: which files, in which order, of which class.

Two layouts. Class folders: `<class>/…/*.jpg`. Annotated: images, and beside them a file of lines
`file, class`, such as TinyImageNet's `val_annotations.txt`. A data set is one such folder, or has
one for each split (`train`, `val`, …), whose classes are then the same.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from echelon.errors import NotFoundError, UsageError

SPLITS = ("train", "val", "valid", "validation", "test")
_IMAGES = "images"
_TYPES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip


class Entry(NamedTuple):
    """One image. Not a dataclass: there may be millions."""

    file: str
    """Path below the listing's folder."""
    file_bytes: int
    label: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The images of one packed file, in its order."""

    source: str
    """The data set's name, with the split where there is one."""
    folder: Path
    entries: tuple[Entry, ...]
    classes: tuple[str, ...]
    """Names by label; empty when labels are numbers without names."""
    words: tuple[str, ...] = ()
    """What the classes are called in words, where the data set says so."""

    def path(self, number: int) -> Path:
        return self.folder / self.entries[number].file


def find_splits(source: Path) -> tuple[list[str], list[str]]:
    """Return a data set's splits, and those that have no labels; none when it is one folder.

    Raises:
        NotFoundError: there is nothing.
        UsageError: it is no folder.
    """
    _check_folder(source)
    folders = [entry.name for entry in _entries(source) if entry.is_dir()]
    found = [name for name in SPLITS if name in folders]
    # A class may be called "train", beside "bus" and "car": one such name says little.
    if len(found) < min(2, len(folders)) and not (source / "wnids.txt").is_file():
        return [], []
    labelled = [name for name in found if _has_labels(source / name)]
    return labelled, [name for name in found if name not in labelled]


def list_folder(source: Path) -> Listing:
    """List a data set that is one folder.

    Raises:
        NotFoundError: there is nothing.
        UsageError: it is no folder, or its images have no classes.
    """
    _check_folder(source)
    return _list(source, source.resolve().name, ())


def list_split(source: Path, split: str) -> Listing:
    """List one split of a data set; the classes are those of `wnids.txt`, or of `train`.

    Raises:
        NotFoundError: there is no such split.
        UsageError: its images have no classes, or others than the data set.
    """
    _check_folder(source)
    if not (source / split).is_dir():
        known = ", ".join(find_splits(source)[0]) or "none"
        raise NotFoundError(
            f"{source} has no split '{split}'; there are: {known}",
            hint="name a folder below it, for example --split train",
        )
    classes = _read_classes(source)
    listing = _list(source / split, f"{source.resolve().name}/{split}", classes)
    return replace(listing, words=_read_words(source / "words.txt", listing.classes))


def _check_folder(source: Path) -> None:
    if source.is_dir():
        return
    if not source.exists():
        raise NotFoundError(f"there is no folder {source}", hint="check the path (ls)")
    hint = "name the folder with the images; an archive has to be unpacked first"
    if source.suffix == ".packed":
        hint = f"it is packed already; to check it: echelon pack --verify {source}"
    raise UsageError(f"{source} is not a folder", hint=hint)


# --- what a data set says about its classes -----------------------------------------------------


def _read_classes(source: Path) -> tuple[str, ...]:
    """Return the classes that all splits share; none when each has to say its own."""
    if (source / "wnids.txt").is_file():
        return tuple(sorted({line.strip() for line in _lines(source / "wnids.txt")}))
    return tuple(_class_folders(source / "train")) if (source / "train").is_dir() else ()


def _read_words(path: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    words = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    return tuple(words.get(name, "").strip() for name in classes)


def _lines(path: Path) -> list[str]:
    # File names may hold bytes that are no text.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return [line for line in text.splitlines() if line.strip()]


def _class_folders(folder: Path) -> list[str]:
    """Return the classes, in the order of their labels."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    return [] if names == [_IMAGES] else _in_order(names)


def _in_order(names: Iterable[str]) -> list[str]:
    """Order by name, or by value where all are numbers: 0 to n - 1 are then their own labels."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if _are_numbers(ordered) else ordered


def _are_numbers(names: Iterable[str]) -> bool:
    return all(name.isascii() and name.isdecimal() for name in names)


# --- one folder ---------------------------------------------------------------------------------


def _list(folder: Path, source: str, classes: tuple[str, ...]) -> Listing:
    annotations = _find_annotations(folder)
    if annotations:
        entries, classes = _list_annotated(folder, annotations, classes)
    else:
        entries, classes = _list_class_folders(folder, classes)
    return Listing(source=source, folder=folder, entries=tuple(entries), classes=classes)


def _has_labels(folder: Path) -> bool:
    return bool(_find_annotations(folder) or _class_folders(folder))


def _find_annotations(folder: Path) -> Path | None:
    names = (f"{folder.resolve().name}_annotations.txt", "labels.txt")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _list_class_folders(
    folder: Path, classes: tuple[str, ...]
) -> tuple[list[Entry], tuple[str, ...]]:
    own = _class_folders(folder)
    if not own:
        if next(_walk(folder), None):
            raise UsageError(
                f"the images in {folder} have no classes",
                hint="put each class into a folder of its own, or add labels.txt with lines of "
                "file, tab, class",
            )
        raise UsageError(
            f"there are no images in {folder}", hint="check the path, and that it was unpacked"
        )
    label_of = {name: label for label, name in enumerate(classes or own)}
    entries = []
    for name in own:
        if name not in label_of:
            raise _foreign_class(name, folder / name)
        found = sorted(_walk(folder / name))
        if not found:
            raise UsageError(
                f"the class folder {folder / name} holds no images",
                hint="remove it, or put its images there",
            )
        entries += [Entry(f"{name}/{file}", size, label_of[name]) for file, size in found]
    return entries, classes or tuple(own)


def _list_annotated(
    folder: Path, annotations: Path, classes: tuple[str, ...]
) -> tuple[list[Entry], tuple[str, ...]]:
    class_of = _read_annotations(annotations)
    prefix = f"{_IMAGES}/" if (folder / _IMAGES).is_dir() else ""
    images = dict(_walk(folder / prefix))
    if missing := sorted(class_of.keys() - images.keys()):
        raise NotFoundError(
            f"{folder / prefix / missing[0]} is not there, and {annotations.name} names it "
            f"({len(missing)} such lines)",
            hint="check that all was unpacked",
        )
    if extra := sorted(images.keys() - class_of.keys()):
        raise UsageError(
            f"{folder / prefix / extra[0]} has no line in {annotations.name} "
            f"({len(extra)} such images)",
            hint="add the lines, or remove the images",
        )
    if not images:
        raise UsageError(
            f"there are no images in {folder}", hint="check the path, and that it was unpacked"
        )
    used = _in_order(set(class_of.values()))
    if _are_numbers(used) and not set(used) <= set(classes):
        label_of = {name: int(name) for name in used}  # ids: they stay what they are
        if classes and max(label_of.values()) >= len(classes):
            raise _foreign_class(used[-1], annotations)
    else:
        classes = classes or tuple(used)
        label_of = {name: label for label, name in enumerate(classes)}
        if foreign := [name for name in used if name not in label_of]:
            raise _foreign_class(foreign[0], annotations)
    entries = [
        Entry(f"{prefix}{file}", images[file], label_of[class_of[file]]) for file in sorted(images)
    ]
    return entries, classes


def _read_annotations(path: Path) -> dict[str, str]:
    """Return file → class; further columns, such as boxes, are not ours."""
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        words = [word.strip() for word in line.split("\t" if "\t" in line else ",")]
        if len(words) < 2 or not all(words[:2]):
            raise UsageError(
                f"line {number} of {path} is not file, tab, class: '{line}'",
                hint="correct the line",
            )
        if found.setdefault(words[0], words[1]) != words[1]:
            raise UsageError(
                f"{path} gives {words[0]} two classes: '{found[words[0]]}' and '{words[1]}'",
                hint="remove one of the lines",
            )
    return found


def _foreign_class(name: str, where: Path) -> UsageError:
    return UsageError(
        f"the class '{name}' of {where} is none of the data set's, which are those of wnids.txt "
        "or train",
        hint="correct it there, or remove what belongs to it",
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return [entry for entry in found if not entry.name.startswith(".")]


def _walk(folder: Path, above: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield the images below a folder, in any order: path from there, and bytes."""
    real = os.path.realpath(folder)
    if real in above:  # a link to where we came from
        return
    for entry in _entries(folder):
        if entry.is_dir():
            for file, size in _walk(Path(entry.path), (*above, real)):
                yield f"{entry.name}/{file}", size
        elif entry.name.lower().endswith(_TYPES):
            yield entry.name, entry.stat().st_size
