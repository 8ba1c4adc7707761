"""What the text of a program tells about its ranks, before they run. All of it is a guess.

- What they will import: the zygote imports it once. A module that is missed costs each rank its own
  import, as without a guess; one too many costs the first start a second.
- Whether they use Echelon's library, and whether they train at all.
"""

import ast
import contextlib
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from echelon.launch.program import Program

OPTIMIZING = ("torch._dynamo",)
"""What torch imports when the first optimizer or DDP is created; takes a second."""
_OPTIMIZERS = frozenset({"optim", "DistributedDataParallel", "Trainer"})
"""Names in a program that will create an optimizer or DDP."""


PACKAGE = "echelon"
_MOST_FILES, _MOST_BYTES = 50, 2**20
"""How much of a program to read for its imports: a second of parsing at most."""


def may_import_torch(program: Program) -> bool:
    """Tell whether ranks may import torch: not if their program names only Python's own modules."""
    imports = read_imports(program)
    hidden = imports & {"importlib", "runpy"} or read_words(program) & {"__import__", "exec"}
    return not imports or trains(imports) or bool(hidden)


def may_optimize(program: Program) -> bool:
    """Tell whether another module that a program imports may create an optimizer or DDP."""
    own = sys.stdlib_module_names | {"torch", "numpy", PACKAGE}
    with contextlib.suppress(OSError, ImportError, KeyError):
        if path := _find_file(program):
            return any(name.partition(".")[0] not in own for name in _imports(path.read_bytes()))
    return True


def foresee_modules(words: frozenset[str]) -> tuple[str, ...]:
    """Return the later imports of torch that a program with these names will cause."""
    return OPTIMIZING if words & _OPTIMIZERS else ()


def read_words(program: Program) -> frozenset[str]:
    """Return the names that a program uses; none if its text cannot be read."""
    try:
        path = _find_file(program)
        return find_words(path.read_bytes()) if path else frozenset()
    except (OSError, ImportError, KeyError):
        return frozenset()  # the ranks will report it


def find_words(text: bytes) -> frozenset[str]:
    """Return the names that Python text uses, of variables, attributes and modules."""
    found: set[str] = set()
    for node in _walk(text):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                found.update(name.split("."))
    return frozenset(found)


def _walk(text: bytes) -> Iterator[ast.AST]:
    try:
        with warnings.catch_warnings(action="ignore"):  # the ranks will show them
            yield from ast.walk(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def read_imports(program: Program) -> frozenset[str]:
    """Return the packages that a Python program imports, also by way of modules beside it.

    Those modules themselves are not among them.
    """
    found: set[str] = set()
    with contextlib.suppress(OSError, ImportError, KeyError):
        start, folder = _find_file(program), Path(program.folder())
        left, seen, size = [start] if start else [], set[Path](), 0
        while left and len(seen) < _MOST_FILES and size < _MOST_BYTES:
            seen.add(path := left.pop(0))
            text = path.read_bytes()
            size += len(text)
            for name in _imports(text):
                beside = _find_beside(folder, name)
                if not beside or name.partition(".")[0] == PACKAGE:
                    found.add(name.partition(".")[0])
                known = seen.union(left)
                left += [one for one in beside if one not in known and one.is_file()]
    return frozenset(found)


def _find_beside(folder: Path, name: str) -> list[Path]:
    """Return the files that a module may have beside a program; none if it is not there."""
    first = name.partition(".")[0]
    if not (folder / first).is_dir() and not (folder / f"{first}.py").is_file():
        return []
    stem = folder.joinpath(*name.split("."))
    return [stem.with_suffix(".py"), stem / "__init__.py"]


def _imports(text: bytes) -> Iterator[str]:
    """Return the modules that Python text imports; a relative import counts as one from beside."""
    for node in _walk(text):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=module, names=names):
                if module:
                    yield module
                before = f"{module}." if module else ""
                yield from (f"{before}{one.name}" for one in names if one.name != "*")


def trains(imports: frozenset[str]) -> bool:
    """Tell whether a program with these imports may train: it uses more than Python's own."""
    return bool(imports - sys.stdlib_module_names)


def find_own_endpoint(program: Program) -> int:
    """Return the line at which a program sets MASTER_ADDR or MASTER_PORT; 0 if none does."""
    with contextlib.suppress(OSError, ImportError, KeyError):
        if path := _find_file(program):
            return next(map(_line_of, filter(_sets_endpoint, _walk(path.read_bytes()))), 0)
    return 0


def _line_of(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))


def _sets_endpoint(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=name)), *_]):
            return name in ("MASTER_ADDR", "MASTER_PORT")
    return False


def _find_file(program: Program) -> Path | None:
    """Return the file with a Python program's text."""
    if program.kind == "binary":
        return None
    return Path(program.argv[0]) if program.kind == "script" else _find_module(program)


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
