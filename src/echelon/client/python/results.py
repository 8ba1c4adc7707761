"""Reads the results of functions from the run directory.

A pickle can execute code, so it is read only from files that no other user could have written.
Results from another host are read from JSON and the bytes of arrays, which
`launch/function_call.py` writes beside the pickle.
"""

import datetime as dt
import json
import math
import os
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, Any

from echelon.core.ownership import find_intruder
from echelon.core.records import open_regular, parse_json, to_count
from echelon.core.terminal_escape import in_one_line
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError
from echelon.launch.function_call import (
    DTYPE,
    FOLDER,
    MOST_BYTES,
    MOST_TEXT,
    PROGRAM,
    RESULTS,
    TENSOR_TYPES,
    name_result,
)
from echelon.run.directory import RunDir
from echelon.run.request import read_spec

_MOST_KEYS = 20_000
"""Keys that could be chosen to collide: a dictionary of many more would take minutes.

Text does not: its hash is random. Nor do 0, 1, 2 … in this order.
"""
_MOST_SIZES = 32
"""Limit of dimensions of an array."""


def is_function(run: RunDir) -> bool:
    """Tell whether a run calls a function that was submitted from Python."""
    return read_spec(run).script.endswith(f"{FOLDER}/{PROGRAM}")


def name_files(*, every: bool, plain: bool) -> str:
    """Return the pattern of the files that `read_results` reads."""
    first = name_result(0, plain=plain)
    return f"{RESULTS}/{f'*{Path(first).suffix}' if every else first}"


def read_results(run: RunDir, *, every: bool, plain: bool = False) -> list[Any]:
    """Return the results of a completed run: rank 0's, or every rank's in order.

    Args:
        run: the run.
        every: whether to read the results of all ranks.
        plain: whether to read only plain data.

    Raises:
        NotFoundError: a result is missing.
        NotPermittedError: another user could have written a result, or it is not plain data.
        UnavailableError: a result is damaged.
    """
    size, first = _read(run, 0, plain=plain)
    others = range(1, size if every else 1)
    return [first, *(_read(run, rank, plain=plain)[1] for rank in others)]


def _read(run: RunDir, rank: int, *, plain: bool) -> tuple[int, Any]:
    """Return the number of ranks, and the result of one."""
    path = run.path / RESULTS / name_result(rank, plain=plain)
    if not plain and (why := find_intruder(path)):
        raise NotPermittedError(
            f"the result of rank {rank} is not read, because a pickle can execute code: {why}",
            hint="keep runs in a directory that only you can write to (runs_dir=…)",
        )
    try:
        with open_regular(path) as file:
            return read_data(file) if plain else _read_pickle(file)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the run '{run.run_id}' has no result of rank {rank}: {path} does not exist",
            hint="the rank may have ended before its function returned, such as by sys.exit()",
        ) from error
    except NotPermittedError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise UnavailableError(
            f"the result of rank {rank} cannot be read: {path}: {type(error).__name__}: {error}",
            hint="it is damaged, or needs a module that this Python does not have",
        ) from error


def _read_pickle(file: IO[bytes]) -> tuple[int, Any]:
    size = int(json.loads(file.readline(1 << 10))["world_size"])
    return size, pickle.load(file)  # noqa: S301  no other user could have written it


def read_data(file: IO[bytes]) -> tuple[int, Any]:
    """Return the number of ranks and the result, from a file of `write_data`.

    The file cannot name code to execute. Arrays take no more memory than their bytes in the file.

    Raises:
        NotPermittedError: the result exists only as a pickle.
        Exception: the file is damaged.
    """
    line = file.readline(MOST_TEXT + (1 << 10))
    head = parse_json(line)
    if "refused" in head:
        raise _refuse(in_one_line(str(head["refused"])[:200]))
    left = os.fstat(file.fileno()).st_size - len(line)
    reader = _Reader(file, left)
    value = reader.make(head["value"])
    if reader.left:
        raise ValueError(f"{reader.left} bytes too many")
    return int(head["world_size"]), value


def _refuse(what: str) -> NotPermittedError:
    return NotPermittedError(
        f"the result is not plain data: {what}",
        hint="return plain data (numbers, text, dates, containers, NumPy arrays, tensors); or, to "
        "let the host execute code on this machine: Run(…, trust_host=True)",
    )


class _Reader:
    """Makes values from their descriptions, and from the bytes of arrays that follow in a file."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        if left > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES:,} bytes")
        self._file, self.left, self._keys = file, left, 0
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "dict": lambda pairs: {
                self._key(key, place): self.make(value) for place, (key, value) in enumerate(pairs)
            },
            "tuple": lambda values: tuple(map(self.make, values)),
            "set": lambda values: set(map(self._key, values, count())),
            "frozenset": lambda values: frozenset(map(self._key, values, count())),
            "bytes": lambda size: bytes(self._take(size)),
            "array": self._make_array,
            "scalar": lambda about: self._make_array(about)[()],
            "tensor": self._make_tensor,
            "complex": lambda parts: complex(*parts),
            "path": Path,
            "timedelta": lambda parts: dt.timedelta(*parts),
            "datetime": dt.datetime.fromisoformat,
            "date": dt.date.fromisoformat,
            "time": dt.time.fromisoformat,
        }

    def make(self, described: Any) -> Any:
        """Return the value."""
        if isinstance(described, list):
            return [self.make(one) for one in described]
        if not isinstance(described, dict):
            return described
        ((kind, content),) = described.items()
        return self._kinds[kind](content)

    def _key(self, described: Any, place: int) -> Any:
        in_order = type(described) is int and described == place
        self._keys += not (in_order or isinstance(described, str))
        if self._keys > _MOST_KEYS:
            raise _refuse(f"more than {_MOST_KEYS:,} keys that are neither text nor 0, 1, 2 …")
        return self.make(described)

    def _take(self, size: Any) -> bytearray:
        """Return the next bytes."""
        if to_count(size, below=self.left + 1) is None:
            raise ValueError(f"{size} bytes where {self.left} are left")
        self.left -= size
        data = bytearray(size)
        if self._file.readinto(data) != size:  # type: ignore[attr-defined]
            raise ValueError("the file became shorter")
        return data

    def _take_array(self, shape: Any, width: int, *, is_bool: bool) -> tuple[list[int], bytearray]:
        if len(shape) > _MOST_SIZES or any(to_count(size) is None for size in shape):
            raise ValueError(f"an array of the shape {str(shape)[:100]}")
        data = self._take(math.prod(shape) * width)
        if is_bool and data.translate(None, b"\0\1"):
            raise ValueError("a truth value that is neither 0 nor 1")
        return shape, data

    def _make_array(self, about: Any) -> Any:
        code, shape = about
        if not DTYPE.fullmatch(code):
            raise ValueError(f"an array of {code[:40]!r}")
        numpy = import_module("numpy")  # imported by its name, because no command needs it
        kind = numpy.dtype(code)
        shape, data = self._take_array(shape, kind.itemsize, is_bool=kind.kind == "b")
        if kind.kind == "U" and data:
            letters = numpy.frombuffer(data, f"{code[0]}u4")
            if letters.max() > sys.maxunicode:
                raise ValueError("text with an impossible character")
        return numpy.ndarray(shape, kind, data)

    def _make_tensor(self, about: Any) -> Any:
        name, shape = about
        if name not in TENSOR_TYPES:
            raise ValueError(f"a tensor of {str(name)[:40]!r}")
        torch = import_module("torch")
        kind = getattr(torch, name)
        shape, data = self._take_array(shape, kind.itemsize, is_bool=name == "bool")
        if not data:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)
