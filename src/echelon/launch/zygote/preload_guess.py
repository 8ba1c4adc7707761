"""Guess from the text of a program what its ranks will import; the zygote imports it once.

A module that is missed costs each rank its own import, as without a guess; one too many costs the
first start a second.
"""

import ast
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path

from echelon.launch.protocol.program import Program

OPTIMIZING = ("torch._dynamo",)
"""What torch imports when the first optimizer or DDP is created; takes a second."""
_OPTIMIZERS = frozenset({"optim", "DistributedDataParallel", "Trainer"})
"""Names in a program that will create an optimizer or DDP."""


def foresee_modules(words: frozenset[str]) -> tuple[str, ...]:
    """Return the later imports of torch that a program with these names will cause."""
    return OPTIMIZING if words & _OPTIMIZERS else ()


def read_words(program: Program) -> frozenset[str]:
    """Return the names that a program uses; none if its text cannot be read."""
    try:
        path = Path(program.argv[0]) if program.kind == "script" else _find_module(program)
        return find_words(path.read_bytes()) if path else frozenset()
    except (OSError, ImportError, KeyError):
        return frozenset()  # the ranks will report it


def find_words(text: bytes) -> frozenset[str]:
    """Return the names that Python text uses, of variables, attributes and modules."""
    found: set[str] = set()
    try:
        with warnings.catch_warnings(action="ignore"):  # the ranks will show them
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                found.update(name.split("."))
    return frozenset(found)


def _find_module(program: Program) -> Path | None:
    """Return a module's file, without importing the packages that contain it."""
    places = [program.folder(), *sys.path[1:]]
    name = ""
    for part in (*program.argv[0].split("."), "__main__"):
        name = f"{name}.{part}".removeprefix(".")
        found = PathFinder.find_spec(name, places)
        if found is None or found.submodule_search_locations is None:
            return Path(found.origin) if found and found.origin else None
        places = list(found.submodule_search_locations)
    return None
