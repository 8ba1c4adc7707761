"""Reading files that may be damaged, by a crash, a full disk or another program.

Whatever a path leads to, reading it ends soon, takes bounded memory, and raises nothing but
`OSError` (it cannot be read) or `ValueError` (its content is damaged).
"""

import errno
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""Largest size of a file; a verdict with the stacks of thousands of ranks is far smaller."""
SMALL_BYTES = 1 << 20
"""Largest size of a record that listings read from every run: parsing it takes milliseconds."""
MOST_SECONDS = 1e11
"""The year 5138: no clock shows a later time."""
MOST_RANKS = 1 << 14
"""No run has more ranks or nodes: a record that says so is damaged."""
MOST_COUNT = 1 << 53
"""A larger number is not a count."""
MOST_NUMBER = 1e30
"""No measurement is larger; NaN and infinity are not measurements either."""
_MOST_DEPTH = 300
"""Largest nesting depth of JSON, so that recursive functions stay within Python's stack."""
_NO_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
"""A link to itself, a path through a file, a socket: retrying does not help."""
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class UnreadableError(OSError):
    """A path leads to no regular file, or to one that is too large: storage is not at fault."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading, unless it is a pipe, a device or a folder: reading may never end.

    Raises:
        UnreadableError: it is not a regular file.
        OSError: it cannot be opened.
    """
    # A plain `open` of a pipe without a writer would block forever.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise UnreadableError(error.errno, error.strerror, str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnreadableError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        UnreadableError: it is not a regular file, or larger than `most` bytes.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return content


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if text.count("[") + text.count("{") > _MOST_DEPTH and _measure_depth(text) > _MOST_DEPTH:
        raise ValueError("nested too deeply")
    return json.loads(text)


def _measure_depth(text: str) -> int:
    depth = deepest = 0
    for found in _NESTING.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


def read_record(path: Path, *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not contain a JSON object.
    """
    record = parse_json(read_bytes(path, most=most))
    if not isinstance(record, dict):
        raise ValueError(f"a JSON object was expected, not {type(record).__name__}")  # noqa: TRY004  damaged content
    return record


def find_record(path: Path, *, most: int = SMALL_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file; empty if it cannot be read or is damaged."""
    try:
        return read_record(path, most=most)
    except (OSError, ValueError):
        return {}


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: it is not TOML, or nested too deeply.
    """
    import tomllib  # noqa: PLC0415  few commands need it

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def to_count(value: Any, *, below: int = MOST_COUNT) -> int | None:
    """Return a non-negative integer of plausible size; None for anything else."""
    return value if type(value) is int and 0 <= value < below else None  # not a bool


def is_time(value: float) -> bool:
    """Tell whether a number is a plausible time, in seconds since the epoch."""
    return 0 <= value < MOST_SECONDS  # False for NaN


def render_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON that every parser accepts: null for NaN and infinity, controls escaped."""
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(value, allow_nan=False, separators=separators, indent=indent)
    except ValueError:
        text = json.dumps(_finite(value), separators=separators, indent=indent)
    return text.replace("\x7f", r"\u007f")  # the only control character that JSON does not escape


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
