"""Reads what functions returned, from the run directory.

A pickle executes code of whoever wrote it, so it is read only from files that nobody else could
have written. What comes from another host is read as plain data: containers, numbers, text and
NumPy's arrays.
"""

import json
import pickle
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
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.numeric": {"_frombuffer"},
    "pathlib": {"PosixPath", "PurePosixPath"},
}
"""Module → names that a plain pickle may contain. None of them executes what it is given."""


class PlainUnpickler(pickle.Unpickler):
    """Reads plain data, and nothing that could execute code."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        raise NotPermittedError(
            f"the result contains {module}.{name}, which could execute code of the other host",
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
