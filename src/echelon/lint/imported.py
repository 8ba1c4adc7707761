"""The modules that a Python script imports: those beside it, and the names of all others."""

import ast
import sys
from collections.abc import Iterable, Iterator

from echelon.core.frozen import frozen
from echelon.lint.files import Files, beside
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript
from echelon.lint.subject import Subject

_MOST_MODULES = 100
_COMMENT = pattern(r"#[^\n]*")


@frozen
class Import:
    """One module that a statement imports."""

    top: str
    """The first part of its name; empty if the import is relative."""
    places: tuple[str, ...]
    """Where its file may be, from the directory of its first part."""


@frozen
class Imported:
    """What a script and all modules beside it import."""

    texts: tuple[str, ...]
    """The text of the script, and then those of the modules that lint read."""
    others: frozenset[str]
    """The first parts of the names of the modules that are elsewhere."""

    @property
    def codes(self) -> Iterator[str]:
        """The texts without comments; a string that contains `#` is cut."""
        return (_COMMENT.sub("", text) for text in self.texts)


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                stem = alias.name.replace(".", "/")
                places = (f"{stem}.py", f"{stem}/__init__.py")
                yield Import(top=alias.name.partition(".")[0], places=places)
        elif isinstance(node, ast.ImportFrom):
            stem = f"{'../' * (node.level - 1)}{(node.module or '').replace('.', '/') or '.'}"
            inside = (f"{stem}/{alias.name}.py" for alias in node.names)
            top = "" if node.level else (node.module or "").partition(".")[0]
            paths = (f"{stem}.py", f"{stem}/__init__.py", *inside)
            yield Import(top=top, places=paths)


def imports_are_read(files: Files, python: PythonScript) -> bool:
    """Tell whether the script imports no module of its repository that lint did not find."""
    own = _names_in_repository(files, python)
    return all(
        any(files.read(beside(python.path, place)) is not None for place in one.places)
        for one in imports_of(python.nodes)
        if not one.top or one.top in own
    )


def read_imported(subject: Subject, python: PythonScript) -> Imported | None:
    """Return what a script imports, also indirectly.

    None if lint does not find one of the modules of the repository, or cannot parse it.
    """
    files, start = subject.files, start_of(subject, python)
    own = _names_in_repository(files, python) - sys.stdlib_module_names
    searched = [start, *_searched(files, python)]
    texts, others = {python.path: python.text}, set[str]()
    waiting: list[tuple[str, Iterable[ast.AST]]] = [(python.path, python.nodes)]
    while waiting:
        path, nodes = waiting.pop()
        for one in imports_of(nodes):
            found = _find(files, searched if one.top else [path], one)
            if not found and (not one.top or one.top in own):
                return None
            if not found:
                others.add(one.top)
            for place, text in found.items():
                if place in texts:
                    continue
                texts[place] = text
                module = _parse(text)
                if module is None or len(texts) > _MOST_MODULES:
                    return None
                waiting.append((place, ast.walk(module)))
    return Imported(texts=tuple(texts.values()), others=frozenset(others))


def _find(files: Files, bases: Iterable[str], one: Import) -> dict[str, str]:
    """Return the files of an import in the first directory that has one, with their texts."""
    for base in bases:
        places = (beside(base, place) for place in one.places)
        found = {place: text for place in places if (text := files.read(place)) is not None}
        if found:
            return found
    return {}


def _searched(files: Files, python: PythonScript) -> Iterator[str]:
    """Yield paths in the directories that PYTHONPATH or an installation usually add."""
    root = files.root(python.path)
    if root is not None:
        for folder in ("", "src/"):
            yield f"{root.path}/{folder}start.py"


def start_of(subject: Subject, python: PythonScript) -> str:
    """Return a path in the directory that Python searches first."""
    for launch in subject.with_python(python):
        if launch.module and launch.program is not None:
            end = launch.program.text.replace(".", "/") + ".py"
            return python.path.removesuffix(end) + "start.py"
    return python.path


def _names_in_repository(files: Files, python: PythonScript) -> frozenset[str]:
    """Return the names of all modules and packages that may be in the repository."""
    repository = files.repository(python.path)
    paths = repository.paths if repository is not None else frozenset()
    return frozenset(part.removesuffix(".py") for path in paths for part in path.split("/"))


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
