"""The program of a run that was submitted as a Python function: each rank calls the function.

Its text is copied into the run's code, beside the pickled function. It runs in the ranks' Python,
which may have nothing of Echelon, and keeps what the function returns in the run directory: as a
pickle, and as data for readers that do not trust this machine (`client/python/results.py`).
"""

import ctypes
import datetime as dt
import json
import os
import pickle
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, Any

FOLDER = ".echelon"
"""Where these files are, in the run's code."""
PROGRAM, FUNCTION, ABOUT, LIBRARY = "call.py", "function.pkl", "function.json", "lib"
RESULTS = "results"
"""Where results are, in the run directory."""
MOST_BYTES = 10**9
"""The largest result."""
MOST_TEXT = 32 << 20
"""Bytes of a result's JSON."""
DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|[SU][1-9][0-9]{0,8})")
"""Types of NumPy's arrays that are data: numbers and text, no objects."""
TENSOR_TYPES = frozenset(
    {
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    }
)
"""Types of tensors that are data."""
_MOST_VALUES = 10**6
_DEEPEST = 90
"""A reader accepts JSON of 300 levels; a dictionary is three."""


def name_result(rank: int, *, plain: bool = False) -> str:
    """Return the name of the file with a rank's result: a pickle, or plain data."""
    return f"rank-{rank:05}.{'data' if plain else 'pkl'}"


def main() -> None:
    """Call the function, and keep its result."""
    folder = Path(__file__).resolve().parent
    about = json.loads((folder / ABOUT).read_text())
    check_python(about)
    root = Path(about["root"] or folder.parent)
    sys.path[:1] = [str(root / path) for path in about["paths"]]
    # Its own version: pickles of one are not for another.
    sys.path.insert(0, str(folder / LIBRARY))
    with (folder / FUNCTION).open("rb") as file:
        packed = pickle.load(file)  # noqa: S301  the digest of the code covers it
    dump = pickle.loads(packed["dump"])  # noqa: S301
    del sys.path[0]
    function = pickle.loads(packed["function"])  # noqa: S301
    call = packed["calls"][int(sys.argv[1]) if sys.argv[1:] else 0]
    args, options = pickle.loads(call)  # noqa: S301
    if about["checkpoint"]:
        options[about["checkpoint"]] = pickle.loads(packed["checkpoint"])(os.environ)  # noqa: S301
    keep_result(function(*args, **options), about["name"], dump)
    if about["checkpoint"]:
        options[about["checkpoint"]].wait()  # an error if the last one could not be written


def check_python(about: dict[str, Any]) -> None:
    """Raise an error if this Python cannot read what another one has pickled."""
    own = "{}.{}".format(*sys.version_info)
    if own != about["python"]:
        raise RuntimeError(
            f"{about['name']} was submitted from Python {about['python']}, and the ranks have "
            f"Python {own}, which cannot read it: use the same version on both sides (python=…)"
        )


class _Limited:
    """A file that does not grow without end."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name, self._left = file, name, MOST_BYTES

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise ValueError(
                f"the result of {self._name} is larger than {MOST_BYTES:,} bytes: write it to a "
                "file in the folder that ECHELON_RUN_DIR names, and return the path"
            )
        self._file.write(data)
        return size


def keep_result(value: object, name: str, dump: Any) -> None:
    """Write a rank's result into the run directory: as data, and as a line and a pickle."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    about = {"rank": rank, "world_size": size}
    folder = Path(os.environ["ECHELON_RUN_DIR"], RESULTS)
    folder.mkdir(mode=0o700, exist_ok=True)
    with _replacing(folder / name_result(rank)) as file:
        file.write(json.dumps(about).encode() + b"\n")
        try:
            dump(value, _Limited(file, name))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(f"the result of {name} cannot be pickled: {error}") from error
    with _replacing(folder / name_result(rank, plain=True)) as file:
        write_data(value, about, file)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    unfinished = path.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


# --- a result as data ---------------------------------------------------------------------------


def write_data(value: object, about: dict[str, Any], file: IO[bytes]) -> None:
    """Write a line of JSON with a value, then the bytes of the arrays in it.

    For a value that is no data, the line says why.
    """
    document = _Document()
    try:
        text = document.render(value, about)
    except Exception as error:  # noqa: BLE001  the pickle exists, and may be all that is wanted
        document, text = _Document(), json.dumps({**about, "refused": str(error)[:200]})
    file.write(text.encode() + b"\n")
    for read in document.parts:
        file.write(read())


class _Document:
    """Describes a value as JSON: lists, numbers and text as they are, others as {kind: content}.

    Bytes are in `parts`, in the order of the description.
    """

    def __init__(self) -> None:
        self.parts: list[Callable[[], bytes]] = []
        self._size = self._count = 0

    def render(self, value: object, about: dict[str, Any]) -> str:
        """Return the JSON.

        Raises:
            TypeError: the value is no data.
            ValueError: it is too large or too deep.
        """
        text = json.dumps({**about, "value": self._describe(value, 0)})
        if len(text) > MOST_TEXT or self._size > MOST_BYTES:
            raise ValueError(f"more than {MOST_TEXT:,} bytes of text, or {MOST_BYTES:,} in arrays")
        return text

    def _describe(self, value: Any, depth: int) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES or depth > _DEEPEST:
            raise ValueError(f"more than {_MOST_VALUES:,} values, or {_DEEPEST} levels of them")
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy and isinstance(value, numpy.ndarray | numpy.generic):
            return self._describe_array(value, numpy)
        if torch and isinstance(value, torch.Tensor):
            return self._describe_tensor(value, torch)
        if value is None or isinstance(value, int | float | str):
            return value
        if isinstance(value, bytes | bytearray):
            self._add(lambda: bytes(value), len(value))
            return {"bytes": len(value)}
        return self._describe_container(value, depth + 1)

    def _describe_container(self, value: Any, depth: int) -> Any:
        if isinstance(value, dict):
            pairs = value.items()
            return {"dict": [[self._describe(one, depth) for one in pair] for pair in pairs]}
        for kind in (list, deque, tuple, set, frozenset):
            if isinstance(value, kind):
                found = [self._describe(one, depth) for one in value]
                return found if kind in (list, deque) else {kind.__name__: found}
        return _describe_other(value)

    def _describe_array(self, value: Any, numpy: Any) -> Any:
        code, is_array = value.dtype.str, type(value) is numpy.ndarray
        if not DTYPE.fullmatch(code) or not (is_array or isinstance(value, numpy.generic)):
            raise TypeError(f"a {_name(value)} of {value.dtype}")
        self._add(value.tobytes, value.nbytes)
        return {"array" if is_array else "scalar": [code, value.shape]}

    def _describe_tensor(self, value: Any, torch: Any) -> Any:
        kind = str(value.dtype).removeprefix("torch.")
        own = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
        if kind not in TENSOR_TYPES or not own:
            raise TypeError(f"a {_name(value)} of {value.dtype} ({value.layout})")
        whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        data = whole.reshape(-1).view(torch.uint8)
        # Without NumPy, which torch does not need.
        self._add(lambda: ctypes.string_at(data.data_ptr(), data.numel()), data.numel())
        return {"tensor": [kind, list(value.shape)]}

    def _add(self, read: Callable[[], bytes], size: int) -> None:
        self.parts.append(read)
        self._size += size


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _describe_other(value: Any) -> dict[str, Any]:
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if isinstance(value, dt.timedelta):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    for kind in (dt.datetime, dt.date, dt.time):
        if isinstance(value, kind):
            return {kind.__name__: value.isoformat()}
    raise TypeError(f"a {_name(value)}")


if __name__ == "__main__":
    main()
