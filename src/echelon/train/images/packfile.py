"""The packed file: what its bytes mean, and whether all of them are there.

Reading it takes the standard library alone, so that the command can check a file on a machine
without torch or pillow. docs/packed.md has the format.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO

from echelon.errors import NotFoundError, UsageError

SUFFIX = ".packed"
MAGIC = b"\x89Packed\n"
VERSION = 1
CHANNELS = 3
LABEL_BYTES = 8
PAGE = 4096
"""Images begin at a multiple of this, so that they can be mapped into memory."""
_PREFIX = struct.Struct("<8sII32s")
"""Magic, version, length of the JSON header, its SHA-256."""
_AGAIN = "copy it again, or pack it anew: echelon pack FOLDER --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the file says about itself."""

    count: int
    """Images in the file."""
    height: int
    width: int
    classes: tuple[str, ...]
    """Names by label; empty when labels are numbers without names."""
    words: tuple[str, ...]
    """What the classes are called in words, where the source says so."""
    source: str
    """Name of the folder that was packed."""
    skipped: int
    """Broken images that were left out."""
    recipe: str
    """SHA-256 of everything that decides the content: names, sizes, labels, settings."""
    labels_offset: int
    labels_sha256: str
    images_offset: int
    images_sha256: str
    """SHA-256 of the images' own SHA-256s, in order: parts of it can be had in parallel."""

    @property
    def image_bytes(self) -> int:
        return self.height * self.width * CHANNELS

    @property
    def file_bytes(self) -> int:
        return self.images_offset + self.count * self.image_bytes


def render_head(header: Header) -> bytes:
    """Return the file's first bytes, up to the end of the JSON header."""
    text = json.dumps(asdict(header)).encode()
    return _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text


def place(header: Header) -> Header:
    """Fill in the offsets for at most `count` images, of which some may yet be skipped."""
    # The real header comes when all images are there, and must not be longer than this one.
    largest = 1 << 62
    digest = "0" * 64
    longest = replace(
        header,
        skipped=header.count,
        labels_offset=largest,
        labels_sha256=digest,
        images_offset=largest,
        images_sha256=digest,
    )
    labels = _align(len(render_head(longest)), 64)
    images = _align(labels + header.count * LABEL_BYTES, PAGE)
    return replace(header, labels_offset=labels, images_offset=images)


def _align(value: int, step: int) -> int:
    return -(-value // step) * step


def read_header(path: Path) -> Header:
    """Return what a packed file says about itself, when all of it is there.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is something else, from a newer Echelon, damaged or cut off.
    """
    with _open(path) as file:
        return _read_header(file, path)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no packed file {path}", hint="make it: echelon pack FOLDER"
        ) from error
    except IsADirectoryError as error:
        raise UsageError(
            f"{path} is a folder", hint=f"name a packed file, such as {path / 'train.packed'}"
        ) from error


def _read_header(file: IO[bytes], path: Path) -> Header:
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(MAGIC):
        raise UsageError(f"{path} is not a packed file", hint="make one: echelon pack FOLDER")
    if len(prefix) < _PREFIX.size:
        raise UsageError(f"{path} is cut off after {len(prefix)} bytes", hint=_AGAIN)
    _, version, length, digest = _PREFIX.unpack(prefix)
    if version > VERSION:
        raise UsageError(
            f"{path} has version {version} of the format, and this Echelon reads up to {VERSION}",
            hint="use a newer one: pip install -U echelon",
        )
    size = path.stat().st_size
    text = file.read(min(length, size))
    if hashlib.sha256(text).digest() != digest:
        raise UsageError(f"the header of {path} is damaged", hint=_AGAIN)
    header = _parse_header(text, path)
    if size != header.file_bytes:
        raise UsageError(
            f"{path} should hold {header.file_bytes} bytes and holds {size}", hint=_AGAIN
        )
    return header


def _parse_header(text: bytes, path: Path) -> Header:
    """Read the JSON; keys of a later writer that we do not know are passed over."""
    known = {field.name: field.type for field in fields(Header)}
    try:
        values = {key: value for key, value in json.loads(text).items() if key in known}
        values["classes"], values["words"] = tuple(values["classes"]), tuple(values["words"])
        header = Header(**values)
        numbers = (header.count, header.height, header.width, header.labels_offset)
        whole = min(numbers) > 0
        apart = header.labels_offset + header.count * LABEL_BYTES <= header.images_offset
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the header of {path} makes no sense: {error}", hint=_AGAIN) from error
    if not (whole and apart):
        raise UsageError(f"the header of {path} makes no sense", hint=_AGAIN)
    return header


def read_labels(path: Path, header: Header) -> bytes:
    """Return the labels, 64-bit whole numbers, lowest byte first.

    Raises:
        UsageError: they are damaged.
    """
    with _open(path) as file:
        file.seek(header.labels_offset)
        labels = file.read(header.count * LABEL_BYTES)
    if hashlib.sha256(labels).hexdigest() != header.labels_sha256:
        raise UsageError(f"the labels of {path} are damaged", hint=_AGAIN)
    return labels


def verify(path: Path, progress: Callable[[int, int], None] = lambda *_: None) -> Header:
    """Check every byte of a packed file, and return its header.

    Args:
        path: the file.
        progress: told how many images of how many have been read.

    Raises:
        NotFoundError: there is no such file.
        UsageError: a byte is not what it was.
    """
    header = read_header(path)
    read_labels(path, header)
    with _open(path) as file:
        head = len(render_head(header))
        labels_end = header.labels_offset + header.count * LABEL_BYTES
        for start, stop in ((head, header.labels_offset), (labels_end, header.images_offset)):
            file.seek(start)
            if any(file.read(stop - start)):
                raise UsageError(f"{path} is damaged before its images", hint=_AGAIN)
        digest = hash_images(file, header, header.count, progress)
    if digest.hexdigest() != header.images_sha256:
        raise UsageError(f"the images of {path} are damaged", hint=_AGAIN)
    return header


def hash_images(
    file: IO[bytes], header: Header, count: int, progress: Callable[[int, int], None]
) -> "hashlib._Hash":
    """Return the hash over the first images of a file; `images_sha256` when it is all of them."""
    digest = hashlib.sha256()
    file.seek(header.images_offset)
    for number in range(count):
        digest.update(hashlib.sha256(file.read(header.image_bytes)).digest())
        if number % 1024 == 0:
            progress(number, count)
    progress(count, count)
    return digest
