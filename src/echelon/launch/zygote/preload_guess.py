"""What ranks will import, by the text of their program: their zygote imports it once for all.

It is a guess. One that misses costs each rank its own import, as ever; one too many costs the first
start a second.
"""

import ast
import sys
import warnings
from importlib.machinery import PathFinder
from pathlib import Path

from echelon.launch.protocol.program import Program

OPTIMIZING = ("torch._dynamo",)
"""What torch imports when an optimiser or DDP is first made: a second of each rank's time."""
_OPTIMIZERS = frozenset({"optim", "DistributedDataParallel", "Trainer"})
"""A program that has one of these names will make one."""


def foresee_modules(words: frozenset[str]) -> tuple[str, ...]:
    """Return which of torch's own later imports a program with these names will cause."""
    return OPTIMIZING if words & _OPTIMIZERS else ()


def read_words(program: Program) -> frozenset[str]:
    """Return the names that a program uses; none where its text is not to be had."""
    try:
        path = Path(program.argv[0]) if program.kind == "script" else _find_module(program)
        return find_words(path.read_bytes()) if path else frozenset()
    except (OSError, ImportError, KeyError):
        return frozenset()  # the ranks will say it better


def find_words(text: bytes) -> frozenset[str]:
    """Return the names that Python text uses, of variables, attributes and modules."""
    found: set[str] = set()
    try:
        with warnings.catch_warnings(action="ignore"):  # they are the ranks' to show
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
    """Return where a module's text is, without importing the packages that it lies in."""
    places = [program.folder(), *sys.path[1:]]
    name = ""
    for part in (*program.argv[0].split("."), "__main__"):
        name = f"{name}.{part}".removeprefix(".")
        found = PathFinder.find_spec(name, places)
        if found is None or found.submodule_search_locations is None:
            return Path(found.origin) if found and found.origin else None
        places = list(found.submodule_search_locations)
    return None
