"""The packed file format: reading, writing and verifying it. docs/packed.md describes it.

This module needs only the standard library, so that a file can be verified on a machine without
torch or pillow.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import IO

from echelon.core.frozen import frozen
from echelon.errors import NotFoundError, UsageError

SUFFIX = ".packed"
MAGIC = b"\x89Packed\n"
VERSION = 1
CHANNELS = 3
LABEL_BYTES = 8
PAGE = 4096
"""Images start at a multiple of this, so that they can be mapped into memory."""
_PREFIX = struct.Struct("<8sII32s")
"""Magic, version, length of the JSON header, its SHA-256."""
_AGAIN = "copy it again, or pack it again: echelon pack SOURCE --force"


@frozen
class Header:
    """The file's header."""

    count: int
    """Number of images in the file."""
    height: int
    width: int
    classes: tuple[str, ...]
    """Names by label; empty if labels are numbers without names."""
    words: tuple[str, ...]
    """Readable names of the classes, if the source has them."""
    source: str
    """Name of the directory that was packed."""
    skipped: int
    """Number of broken images that were skipped."""
    recipe: str
    """SHA-256 of everything that determines the content: names, sizes, labels, settings."""
    labels_offset: int
    labels_sha256: str
    images_offset: int
    images_sha256: str
    """SHA-256 of the images' own SHA-256s, in order, so that they can be computed in parallel."""

    @property
    def image_bytes(self) -> int:
        return self.height * self.width * CHANNELS

    @property
    def file_bytes(self) -> int:
        return self.images_offset + self.count * self.image_bytes


def render_head(header: Header) -> bytes:
    """Return the start of the file, up to the end of the JSON header."""
    text = json.dumps(asdict(header)).encode()
    return _PREFIX.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text


def place(header: Header) -> Header:
    """Fill in the offsets for at most `count` images; some of them may still be skipped."""
    # The final header is written after all images, and must not be longer than this one.
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
    """Return the header of a complete packed file.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is not a packed file, has a newer format, or is damaged or truncated.
    """
    with _open(path) as file:
        return _read_header(file, path)


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(
            f"there is no packed file {path}", hint="create it: echelon pack SOURCE"
        ) from error
    except IsADirectoryError as error:
        raise UsageError(
            f"{path} is a directory", hint=f"use a packed file, such as {path / 'train.packed'}"
        ) from error


def _read_header(file: IO[bytes], path: Path) -> Header:
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(MAGIC):
        raise UsageError(f"{path} is not a packed file", hint="create one: echelon pack SOURCE")
    if len(prefix) < _PREFIX.size:
        raise UsageError(f"{path} is truncated after {len(prefix)} bytes", hint=_AGAIN)
    _, version, length, digest = _PREFIX.unpack(prefix)
    if version > VERSION:
        raise UsageError(
            f"{path} has format version {version}; this Echelon supports up to {VERSION}",
            hint="use a newer Echelon, or pack it again: echelon pack SOURCE --force",
        )
    size = path.stat().st_size
    text = file.read(min(length, size))
    if hashlib.sha256(text).digest() != digest:
        raise UsageError(f"the header of {path} is damaged", hint=_AGAIN)
    header = _parse_header(text, path)
    if size != header.file_bytes:
        raise UsageError(f"{path} has {size} bytes, expected {header.file_bytes}", hint=_AGAIN)
    return header


def _parse_header(text: bytes, path: Path) -> Header:
    """Parse the JSON; unknown keys, from a newer writer, are ignored."""
    known = {field.name: field.type for field in fields(Header)}
    try:
        values = {key: value for key, value in json.loads(text).items() if key in known}
        values["classes"], values["words"] = tuple(values["classes"]), tuple(values["words"])
        header = Header(**values)
        numbers = (header.count, header.height, header.width, header.labels_offset)
        whole = min(numbers) > 0
        apart = header.labels_offset + header.count * LABEL_BYTES <= header.images_offset
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the header of {path} is invalid: {error}", hint=_AGAIN) from error
    if not (whole and apart):
        raise UsageError(f"the header of {path} is invalid", hint=_AGAIN)
    return header


def read_labels(path: Path, header: Header) -> bytes:
    """Return the labels: 64-bit integers, little-endian.

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
    """Verify all checksums of a packed file, and return its header.

    Args:
        path: the file.
        progress: called with the number of images read and their total.

    Raises:
        NotFoundError: there is no such file.
        UsageError: the file is damaged.
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
    """Return the hash over the first `count` images; for all of them it is `images_sha256`."""
    digest = hashlib.sha256()
    file.seek(header.images_offset)
    for number in range(count):
        digest.update(hashlib.sha256(file.read(header.image_bytes)).digest())
        if number % 1024 == 0:
            progress(number, count)
    progress(count, count)
    return digest
