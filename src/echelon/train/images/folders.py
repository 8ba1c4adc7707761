"""List the files of a labelled image data set, with their order and classes.

There are two layouts. Class directories: `<class>/…/*.jpg`. Annotated: images, and beside them a
file with lines of `file, class`, such as TinyImageNet's `val_annotations.txt`. A data set is one
such directory, or has one per split (`train`, `val`, …), which then share their classes.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from echelon.core.frozen import frozen
from echelon.errors import NotFoundError, UsageError

SPLITS = ("train", "val", "valid", "validation", "test")
_IMAGES = "images"
_TYPES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip


class ImageFile(NamedTuple):
    """One image. A tuple rather than a dataclass, because there may be millions."""

    file: str
    """Path below the listing's directory."""
    file_bytes: int
    label: int


@frozen
class Listing:
    """The images of one packed file, in its order."""

    source: str
    """The data set's name, with the split if there is one."""
    folder: Path
    entries: tuple[ImageFile, ...]
    classes: tuple[str, ...]
    """Names by label; empty if labels are numbers without names."""
    words: tuple[str, ...] = ()
    """Readable names of the classes, if the data set has them."""

    def path(self, number: int) -> Path:
        return self.folder / self.entries[number].file


def find_splits(source: Path) -> tuple[list[str], list[str]]:
    """Return a data set's splits, and those without labels; both empty if it has no splits.

    Raises:
        NotFoundError: the directory does not exist.
        UsageError: it is not a directory.
    """
    _check_folder(source)
    folders = [entry.name for entry in _entries(source) if entry.is_dir()]
    found = [name for name in SPLITS if name in folders]
    # "train" may be a class next to "bus" and "car", so one such name does not prove a split.
    if len(found) < min(2, len(folders)) and not (source / "wnids.txt").is_file():
        return [], []
    labelled = [name for name in found if _has_labels(source / name)]
    return labelled, [name for name in found if name not in labelled]


def list_folder(source: Path) -> Listing:
    """List a data set without splits.

    Raises:
        NotFoundError: the directory does not exist.
        UsageError: it is not a directory, or its images have no classes.
    """
    _check_folder(source)
    return _list(source, source.resolve().name, ())


def list_split(source: Path, split: str) -> Listing:
    """List one split of a data set; the classes are those of `wnids.txt`, or of `train`.

    Raises:
        NotFoundError: there is no such split.
        UsageError: its images have no classes, or classes that the data set does not have.
    """
    _check_folder(source)
    if not (source / split).is_dir():
        known = ", ".join(find_splits(source)[0]) or "none"
        raise NotFoundError(
            f"{source} has no split '{split}' (available: {known})",
            hint="use the name of a directory below it, for example --split train",
        )
    classes = _read_classes(source)
    listing = _list(source / split, f"{source.resolve().name}/{split}", classes)
    return replace(listing, words=_read_words(source / "words.txt", listing.classes))


def _check_folder(source: Path) -> None:
    if source.is_dir():
        return
    if not source.exists():
        raise NotFoundError(f"there is no directory {source}", hint="check the path with: ls")
    hint = "use the directory of the images; extract an archive first"
    if source.suffix == ".packed":
        hint = f"it is already packed; verify it with: echelon pack --verify {source}"
    raise UsageError(f"{source} is not a directory", hint=hint)


# --- classes ------------------------------------------------------------------------------------


def _read_classes(source: Path) -> tuple[str, ...]:
    """Return the classes that all splits share; empty if each split defines its own."""
    if (source / "wnids.txt").is_file():
        return tuple(sorted({line.strip() for line in _lines(source / "wnids.txt")}))
    return tuple(_class_folders(source / "train")) if (source / "train").is_dir() else ()


def _read_words(path: Path, classes: tuple[str, ...]) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    words = dict(line.split("\t", 1) for line in _lines(path) if "\t" in line)
    return tuple(words.get(name, "").strip() for name in classes)


def _lines(path: Path) -> list[str]:
    # File names may contain bytes that are not UTF-8.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return [line for line in text.splitlines() if line.strip()]


def _class_folders(folder: Path) -> list[str]:
    """Return the classes, in the order of their labels."""
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    return [] if names == [_IMAGES] else _in_order(names)


def _in_order(names: Iterable[str]) -> list[str]:
    """Order by name, or by value if all are numbers, so that 0 to n - 1 are their own labels."""
    ordered = sorted(names)
    return sorted(ordered, key=int) if _are_numbers(ordered) else ordered


def _are_numbers(names: Iterable[str]) -> bool:
    return all(name.isascii() and name.isdecimal() for name in names)


# --- one directory ------------------------------------------------------------------------------


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
) -> tuple[list[ImageFile], tuple[str, ...]]:
    own = _class_folders(folder)
    if not own:
        if next(_walk(folder), None):
            raise UsageError(
                f"the images in {folder} have no classes",
                hint="put each class into a directory of its own, or add labels.txt with lines of "
                "file, tab, class",
            )
        raise UsageError(
            f"there are no images in {folder}", hint="check the path and that it was extracted"
        )
    label_of = {name: label for label, name in enumerate(classes or own)}
    entries = []
    for name in own:
        if name not in label_of:
            raise _foreign_class(name, folder / name)
        found = sorted(_walk(folder / name))
        if not found:
            raise UsageError(
                f"the class directory {folder / name} contains no images",
                hint="remove it, or add its images",
            )
        entries += [ImageFile(f"{name}/{file}", size, label_of[name]) for file, size in found]
    return entries, classes or tuple(own)


def _list_annotated(
    folder: Path, annotations: Path, classes: tuple[str, ...]
) -> tuple[list[ImageFile], tuple[str, ...]]:
    class_of = _read_annotations(annotations)
    prefix = f"{_IMAGES}/" if (folder / _IMAGES).is_dir() else ""
    images = dict(_walk(folder / prefix))
    if missing := sorted(class_of.keys() - images.keys()):
        raise NotFoundError(
            f"{folder / prefix / missing[0]} is listed in {annotations.name} but does not exist "
            f"({len(missing)} such lines)",
            hint="check that the data set was extracted completely",
        )
    if extra := sorted(images.keys() - class_of.keys()):
        raise UsageError(
            f"{folder / prefix / extra[0]} has no line in {annotations.name} "
            f"({len(extra)} such images)",
            hint="add the lines, or remove the images",
        )
    if not images:
        raise UsageError(
            f"there are no images in {folder}", hint="check the path and that it was extracted"
        )
    used = _in_order(set(class_of.values()))
    if _are_numbers(used) and not set(used) <= set(classes):
        label_of = {name: int(name) for name in used}  # numeric classes keep their values
        if classes and max(label_of.values()) >= len(classes):
            raise _foreign_class(used[-1], annotations)
    else:
        classes = classes or tuple(used)
        label_of = {name: label for label, name in enumerate(classes)}
        if foreign := [name for name in used if name not in label_of]:
            raise _foreign_class(foreign[0], annotations)
    entries = [
        ImageFile(f"{prefix}{file}", images[file], label_of[class_of[file]])
        for file in sorted(images)
    ]
    return entries, classes


def _read_annotations(path: Path) -> dict[str, str]:
    """Return file → class; further columns, such as boxes, are ignored."""
    found: dict[str, str] = {}
    for number, line in enumerate(_lines(path), 1):
        words = [word.strip() for word in line.split("\t" if "\t" in line else ",")]
        if len(words) < 2 or not all(words[:2]):
            raise UsageError(
                f"line {number} of {path} is invalid: '{line}'",
                hint="expected: file, tab or comma, class",
            )
        if found.setdefault(words[0], words[1]) != words[1]:
            raise UsageError(
                f"{path} gives {words[0]} two classes: '{found[words[0]]}' and '{words[1]}'",
                hint="remove one of the lines",
            )
    return found


def _foreign_class(name: str, where: Path) -> UsageError:
    return UsageError(
        f"unknown class '{name}' in {where}: the data set's classes are those of wnids.txt or "
        "train",
        hint="correct the class, or remove its images",
    )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return [entry for entry in found if not entry.name.startswith(".")]


def _walk(folder: Path, above: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield the images below a directory, in any order: relative path and size in bytes."""
    real = os.path.realpath(folder)
    if real in above:  # a link to a parent directory
        return
    for entry in _entries(folder):
        if entry.is_dir():
            for file, size in _walk(Path(entry.path), (*above, real)):
                yield f"{entry.name}/{file}", size
        elif entry.name.lower().endswith(_TYPES):
            yield entry.name, entry.stat().st_size
