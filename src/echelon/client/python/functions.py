"""Packs a Python function into a run's code: its pickle, and the program that calls it."""

import importlib.machinery
import inspect
import json
import pickle
import pickletools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from echelon.core.frozen import frozen
from echelon.errors import UsageError
from echelon.launch import function_call
from echelon.launch.function_call import ABOUT, FOLDER, FUNCTION, LIBRARY, PROGRAM

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional arguments and named arguments."""
MOST_BYTES = 100 * 10**6
"""Limit for a function and its arguments, which are copied for each run like the code."""
_DUMP = b"ccloudpickle\ndump\n."
_OPEN_CHECKPOINT = b"cechelon.train.checkpoint\nopen_in_run\n."
"""Pickles of two functions, written by hand so that neither this process nor the program imports
torch for them."""
_LIBRARIES = ("torch", "echelon")
"""Libraries whose use matters before the ranks start, for preloading torch and for resumption."""
_CHECKPOINTER = "Checkpointer"


@frozen
class PackedFunction:
    """A function as files for the run's code."""

    name: str
    files: Mapping[str, bytes]
    """Path → content."""


def pack_function(
    function: Callable[..., Any], calls: Sequence[Call], root: Path, *, copied: bool
) -> PackedFunction:
    """Pickle a function and the arguments of its calls.

    Args:
        function: the function.
        calls: one per task.
        root: the project's directory.
        copied: whether the run executes a copy of the project.

    Raises:
        UsageError: something cannot be pickled, is too large, or does not fit the function.
    """
    name = getattr(function, "__name__", type(function).__name__)
    checkpoint = find_checkpoint(function)
    for args, options in calls:
        _check_arguments(function, name, args, options, checkpoint)
    with _by_value(function) as by_value:
        packed = _pickle(function, name)
        arguments = [_pickle(call, f"an argument of {name}") for call in calls]
    parts = {"function": packed, "calls": arguments, "dump": _DUMP, "checkpoint": _OPEN_CHECKPOINT}
    content = pickle.dumps(parts)
    if len(content) > MOST_BYTES:
        raise UsageError(
            f"{name} and its arguments are {len(content):,} bytes; the limit is {MOST_BYTES:,}",
            hint="pass the path of a file instead of its data",
        )
    about = {
        "name": name,
        "python": "{}.{}".format(*sys.version_info),
        "checkpoint": checkpoint,
        "paths": _list_paths(root),
        "root": "" if copied else str(root),
    }
    uses = find_libraries(packed, by_value) | ({"echelon", "torch"} if checkpoint else set())
    files = {
        PROGRAM: _program(uses),
        FUNCTION: content,
        ABOUT: json.dumps(about).encode(),
        **_pickling_library(),
    }
    return PackedFunction(
        name=re.sub(r"\W+", "", name) or "function",
        files={f"{FOLDER}/{path}": data for path, data in files.items()},
    )


def find_checkpoint(function: Callable[..., Any]) -> str:
    """Return the parameter that is annotated as a Checkpointer; empty if there is none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin
        return ""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return next((one.name for one in parameters if _is_checkpointer(one.annotation, names)), "")


def _is_checkpointer(kind: Any, names: Mapping[str, Any]) -> bool:
    """Tell whether an annotation is our Checkpointer, without the import, which needs torch.

    Args:
        kind: the annotation, which may be text.
        names: the function's globals; names that are missing are imported for type checkers only.
    """
    if isinstance(kind, str):
        first, _, rest = kind.partition(".")
        if first not in names:
            return kind.rpartition(".")[2] == _CHECKPOINTER
        if rest:
            return rest == _CHECKPOINTER and getattr(names[first], "__name__", "") == "echelon"
        kind = names[first]
    own = str(getattr(kind, "__module__", "")).partition(".")[0] == "echelon"
    return own and getattr(kind, "__qualname__", "") == _CHECKPOINTER


def _check_arguments(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    checkpoint: str,
) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    given = {**options, checkpoint: None} if checkpoint else options
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        raise UsageError(
            f"{name}{signature} cannot be called like this: {error}",
            hint="pass its arguments after the function: submit(function, lr=0.1)",
        ) from error


def _pickle(value: object, what: str) -> bytes:
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # the pickling methods of objects can raise any exception
        raise UsageError(
            f"{what} cannot be pickled: {error}",
            hint="create such objects (locks, open files, connections) inside the function",
        ) from error


@contextmanager
def _by_value(function: Callable[..., Any]) -> Iterator[str]:
    """Pickle a function's module by value if the ranks could not import it.

    Yield the name of that module; empty if there is none.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or _can_be_imported(module):
        yield ""
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield module.__name__
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: Any) -> bool:
    """Tell whether a new process would import the same module; pytest's imports may differ."""
    if module.__name__ in ("__main__", "__mp_main__"):
        return True  # cloudpickle always pickles these by value
    places: Sequence[str] | None = None
    name, found = "", None
    for part in module.__name__.split("."):
        name = f"{name}.{part}".removeprefix(".")
        try:
            found = importlib.machinery.PathFinder.find_spec(name, places)
            places = list(found.submodule_search_locations or ()) if found else None
        except (KeyError, ImportError):  # the parent package was never imported
            return False
        if found is None:
            return module.__name__ in sys.builtin_module_names
    return found is not None and found.origin == getattr(module, "__file__", found.origin)


def find_libraries(packed: bytes, by_value: str = "") -> set[str]:
    """Guess which of `_LIBRARIES` a pickled function and its module use.

    A module that was pickled by value is not examined: the pickle has only what the function uses.
    """
    found = set()
    for _, value, _ in pickletools.genops(packed):
        if isinstance(value, str):
            found |= {name for name in _LIBRARIES if value == name or value.startswith(f"{name}.")}
            if value not in ("__main__", by_value) and (module := sys.modules.get(value)):
                found |= {name for name in _LIBRARIES if _uses(module, name)}
    return found


def _uses(module: Any, name: str) -> bool:
    """Tell whether a module of the user has something from a library in its globals."""
    if not getattr(module, "__file__", None) or module.__name__.partition(".")[0] in _LIBRARIES:
        return False
    return any(
        str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).partition(".")[0]
        == name
        for value in list(vars(module).values())
        if not isinstance(value, str)
    )


def _program(uses: set[str]) -> bytes:
    """Return the program, with imports of libraries that only the pickled function uses."""
    text = Path(function_call.__file__).read_text()
    if not uses:
        return text.encode()
    lines = "".join(f"    import {name}\n" for name in sorted(uses))
    return f"{text}\n\nif False:  # what the function uses\n{lines}".encode()


def _pickling_library() -> dict[str, bytes]:
    folder = Path(cloudpickle.__file__).parent
    return {
        f"{LIBRARY}/{folder.name}/{path.name}": path.read_bytes() for path in folder.glob("*.py")
    }


def _list_paths(root: Path) -> list[str]:
    """Return the folders of the project on Python's search path, relative to the project."""
    paths = [Path(entry or ".").resolve() for entry in sys.path]
    inner = (path for path in paths if path.is_dir() and path.is_relative_to(root))
    own = [str(path.relative_to(root)) for path in inner if "site-packages" not in path.parts]
    return list(dict.fromkeys([*own, "."]))
