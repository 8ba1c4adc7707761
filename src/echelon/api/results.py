"""Reads what functions returned, from the run directory.

A pickle executes code of whoever wrote it, so it is read only from files that nobody else could
have written. What comes from another host is read as plain data: containers, numbers, text and
NumPy's arrays.
"""

import json
import math
import pickle
import re
import sys
from importlib import import_module
from typing import IO, Any

from echelon.core.ownership import find_intruder
from echelon.core.records import open_regular
from echelon.errors import NotFoundError, NotPermittedError, UnavailableError
from echelon.launch.function_call import RESULTS, name_result
from echelon.run.directory import RunDir

_PLAIN = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"OrderedDict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "numpy": {"ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.numeric": {"_frombuffer"},
    "pathlib": {"PosixPath", "PurePosixPath"},
}
"""Module → names that a plain pickle may contain. None of them executes what it is given."""
_CODE = re.compile(r"[<>|=]?[?biufcSU][0-9]{0,9}")
"""Types of an array's elements: numbers and text, no objects and no fields."""


class PlainUnpickler(pickle._Unpickler):  # noqa: SLF001  the one whose steps can be checked
    """Reads plain data, and nothing that could execute code.

    NumPy believes what a pickle says about its types, even that memory holds an object. So what it
    is told is checked here.
    """

    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "dtype"):
            return _make_type
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        raise _refuse(f"{module}.{name}")

    def load_build(self) -> None:
        """Give an object its state: only arrays and their types, which are checked."""
        state, made = self.stack.pop(), self.stack[-1]
        kind = type(made).__module__.partition(".")[0], type(made).__name__
        known = kind == ("numpy", "ndarray") and _is_array(state)
        if not known and not (_is_type(made) and _is_type_state(state, made)):
            raise _refuse(f"the state of {'.'.join(kind)}")
        made.__setstate__(state)

    dispatch = {  # noqa: RUF012  as in the class above
        **pickle._Unpickler.dispatch,  # noqa: SLF001
        pickle.BUILD[0]: load_build,  # type: ignore[dict-item]
    }


def _make_type(code: object, *_: object) -> Any:
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise _refuse(f"an array of {str(code)[:40]!r}")
    return import_module("numpy").dtype(code, copy=True)  # by name: no command needs it


def _is_type(made: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(made, numpy.dtype)


def _is_type_state(state: object, made: Any) -> bool:
    """Tell whether a state is that of a simple type, as large as it says."""
    if not isinstance(state, tuple) or len(state) != 8:
        return False
    version, order, subtype, names, fields, size, alignment, flags = state
    simple = (subtype, names, fields, flags) == (None, None, None, made.flags)
    fits = size in (-1, made.itemsize) and alignment in (-1, made.alignment)
    return version in (3, 4) and order in ("<", ">", "|", "=") and simple and fits


def _is_array(state: object) -> bool:
    if not isinstance(state, tuple) or len(state) != 5:
        return False
    _, shape, kind, _, content = state
    if not _is_type(kind) or not isinstance(content, bytes) or not isinstance(shape, tuple):
        return False
    counts = all(type(one) is int and one >= 0 for one in shape)
    return counts and len(content) == math.prod(shape) * kind.itemsize


def _refuse(what: str) -> NotPermittedError:
    return NotPermittedError(
        f"the result contains {what}, which could execute code of the other host",
        hint="return plain data (lists, dicts, numbers, text, NumPy arrays), or trust the host",
    )


def read_results(run: RunDir, *, every: bool, plain: bool = False) -> list[Any]:
    """Return the results of a completed run: rank 0's, or every rank's in order.

    Args:
        run: the run.
        every: whether to read those of all ranks.
        plain: whether to read only plain data.

    Raises:
        NotFoundError: a result is missing.
        NotPermittedError: another user could have written it, or it is not plain.
        UnavailableError: it is damaged.
    """
    size, first = _read(run, 0, plain=plain)
    others = range(1, size if every else 1)
    return [first, *(_read(run, rank, plain=plain)[1] for rank in others)]


def _read(run: RunDir, rank: int, *, plain: bool) -> tuple[int, Any]:
    """Return the number of ranks, and the result of one."""
    path = run.path / RESULTS / name_result(rank)
    if why := find_intruder(path):
        raise NotPermittedError(
            f"the result of rank {rank} is not read, because a pickle can execute code: {why}",
            hint="keep runs in a directory that only you can write to (runs_dir=…)",
        )
    try:
        with open_regular(path) as file:
            size = int(json.loads(file.readline(1 << 10))["world_size"])
            return size, _load(file, plain=plain)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the run '{run.run_id}' has no result of rank {rank}: {path} does not exist",
            hint="the rank may have ended before its function returned, such as by sys.exit()",
        ) from error
    except NotPermittedError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UnavailableError(
            f"the result of rank {rank} cannot be read: {path}: {type(error).__name__}: {error}",
            hint="it is damaged, or needs a module that this Python does not have",
        ) from error


def _load(file: IO[bytes], *, plain: bool) -> Any:
    if plain:
        return PlainUnpickler(file).load()
    return pickle.load(file)  # noqa: S301  nobody else could have written it
