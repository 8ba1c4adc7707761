"""A Python script as the rules use it: its tree, its calls by name, and what it imports.

Rules check the script itself. Imported modules are only searched for words, because they may do
what the script does not.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

from echelon.lint.files import Files, beside
from echelon.lint.patterns import pattern

_MOST_MODULES = 20
_MOST_KEPT = 32
"""Scripts to keep, because several jobs often start the same one."""
_IMPORT = pattern(
    r"(?m)^[ \t]*(?:from[ \t]+\.*([\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#(]*))"
    r"|import[ \t]+([^\n#]*))"
)
_NAME = pattern(r"[\w.]+")
Function = ast.FunctionDef | ast.AsyncFunctionDef
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class PythonScript:
    """Most rules need few of its properties, so they are computed when they are first used."""

    path: str
    text: str
    tree: ast.Module
    files: Files
    """Where the modules are that it imports."""

    @cached_property
    def neighbours(self) -> str:
        """The text of the local modules that it imports."""
        return "\n".join(_neighbours(self.text, self.path, self.files))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node, level by level."""
        parents: dict[ast.AST, ast.AST] = {}
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:  # grows on the way
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    nodes.append(value)
                    parents[value] = node
                elif isinstance(value, list):
                    children = [child for child in value if isinstance(child, ast.AST)]
                    nodes += children
                    parents.update(dict.fromkeys(children, node))
        return parents

    @property
    def nodes(self) -> Iterable[ast.AST]:
        """All nodes below the tree."""
        return self.parents.keys()

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """Values by the text of the name or attribute they are assigned to."""
        found: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    found.setdefault(unparse(target), []).append(node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                found.setdefault(unparse(node.target), []).append(node.value)
        return found

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions that it defines, by name."""
        return _grouped((n.name, n) for n in self.nodes if isinstance(n, Function))

    @cached_property
    def called(self) -> dict[str, list[ast.Call]]:
        """Calls by the last part of the function name."""
        return _grouped((last_name(n.func), n) for n in self.nodes if isinstance(n, ast.Call))

    def calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions, by the last part of the function name."""
        found = [call for name in names for call in self.called.get(name, [])]
        return sorted(found, key=lambda call: call.lineno)

    def mentions(self, *words: str) -> bool:
        """Tell whether the script or an imported local module contains one of the words."""
        return any(word in self.text or word in self.neighbours for word in words)

    @property
    def whole(self) -> str:
        """The script and the local modules that it imports."""
        return f"{self.text}\n{self.neighbours}"

    @property
    def is_distributed(self) -> bool:
        return bool(self.calls("init_process_group"))


@lru_cache(maxsize=_MOST_KEPT)
def parse_python(text: str, *, path: str, files: Files) -> PythonScript | None:
    """Return a script; None if this Python version cannot parse it."""
    text = text.removeprefix("\ufeff")  # Python accepts a byte order mark
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return PythonScript(path=path, text=text, tree=tree, files=files)


def _grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    found: dict[str, list[_T]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _neighbours(script: str, path: str, files: Files) -> Iterator[str]:
    """Yield the texts of local modules that a script imports, also indirectly."""
    seen, waiting = {path}, [(script, path)]
    while waiting and len(seen) < _MOST_MODULES:
        current, place = waiting.pop()
        for name in _imported(current):
            stem = name.replace(".", "/")
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                where = beside(place, candidate)
                text = None if where in seen else files.read(where)
                if text is not None:
                    seen.add(where)
                    yield text
                    waiting.append((text, where))


@lru_cache(maxsize=1000)
def _imported(text: str) -> tuple[str, ...]:
    """Return the modules that a text imports, and the names that may be modules."""
    found: dict[str, None] = {}
    for base, several, one, plain in _IMPORT.findall(text):
        names = [part.split()[0] for part in (several or one or plain).split(",") if part.split()]
        if base:
            found[base] = None
        found |= {f"{base}.{name}".strip("."): None for name in names if _NAME.fullmatch(name)}
    return tuple(found)


# --- expressions ----------------------------------------------------------------------------


def unparse(node: ast.AST) -> str:
    """Return the text of a node; empty if it is too deeply nested."""
    base, parts = node, list[str]()
    while isinstance(base, ast.Attribute):
        parts.append(base.attr)
        base = base.value
    if isinstance(base, ast.Name):  # most nodes are dotted names, for which ast.unparse is slow
        return ".".join([base.id, *reversed(parts)])
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name: `c` for a.b.c."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument by its name or position."""
    for given in call.keywords:
        if given.arg == name:
            return given.value
    if position is not None and len(call.args) > position:
        return call.args[position]
    return None


def has_spread(call: ast.Call) -> bool:
    """Tell whether a call has *args or **kwargs."""
    return any(given.arg is None for given in call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    )


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal; None for any other node."""
    return node.value if isinstance(node, ast.Constant) else None


# --- position of a node ---------------------------------------------------------------------


def ancestors(script: PythonScript, node: ast.AST) -> Iterator[ast.AST]:
    while (parent := script.parents.get(node)) is not None:
        yield parent
        node = parent


def is_conditional(script: PythonScript, node: ast.AST) -> bool:
    """Tell whether a node is conditional, as in `if "RANK" not in os.environ`."""
    for parent in ancestors(script, node):
        if isinstance(parent, ast.IfExp | ast.ExceptHandler | ast.BoolOp):
            return True
        if isinstance(parent, ast.If) and "__name__" not in unparse(parent.test):
            return True
    return False


def enclosing_function(script: PythonScript, node: ast.AST) -> Function | None:
    for parent in ancestors(script, node):
        if isinstance(parent, Function):
            return parent
    return None
