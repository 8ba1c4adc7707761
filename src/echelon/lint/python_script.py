"""A Python script as the rules use it: calls by name, and the origin of values.

Rules check the script itself. Imported modules are only searched for words, because they may do
what the script does not.
"""

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from echelon.lint.files import Files, Place, beside

_MOST_MODULES = 20
_MOST_PARTS = 60
_DEEPEST = 4
"""Maximum number of names to follow."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonScript:
    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree."""
    assigned: dict[str, list[ast.expr]]
    """Values by the text of the name or attribute they are assigned to."""
    functions: dict[str, list[Function]]
    """Functions that it defines, by name."""
    called: dict[str, list[ast.Call]]
    """Calls by the last part of the function name."""
    parents: dict[ast.AST, ast.AST]
    """The parent of each node."""
    neighbours: str
    """The text of the local modules that it imports."""

    def at(self, node: ast.stmt | ast.expr) -> Place:
        return Place(self.path, node.lineno)

    def calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions, by the last part of the function name."""
        found = [call for name in names for call in self.called.get(name, [])]
        return sorted(found, key=lambda call: call.lineno)

    def mentions(self, *words: str) -> bool:
        """Tell whether the script or an imported local module contains one of the words."""
        return any(word in self.text or word in self.neighbours for word in words)

    @property
    def is_distributed(self) -> bool:
        return bool(self.calls("init_process_group"))


def parse_python(text: str, *, path: str, files: Files) -> PythonScript | None:
    """Return a script; None if this Python version cannot parse it."""
    text = text.removeprefix("\ufeff")  # Python accepts a byte order mark
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in strings
            tree = ast.parse(text)
            nodes = tuple(ast.walk(tree))
            parents = {c: node for node in nodes for c in ast.iter_child_nodes(node)}
            assigned = _grouped((unparse(to), value) for n in nodes for to, value in _bound(n))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    neighbours = "\n".join(_neighbours(tree, path, files))
    return PythonScript(
        path=path,
        text=text,
        tree=tree,
        nodes=nodes,
        assigned=assigned,
        functions=_grouped((n.name, n) for n in nodes if isinstance(n, Function)),
        called=_grouped((last_name(n.func), n) for n in nodes if isinstance(n, ast.Call)),
        parents=parents,
        neighbours=neighbours,
    )


def _grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    found: dict[str, list[_T]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets and values that a node binds, also in `a, b = …` and `with … as a`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _pairs(node.optional_vars, node.context_expr)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    yield target, value
    if not isinstance(target, ast.Tuple | ast.List):
        return
    values = [value] * len(target.elts)
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        values = value.elts
    for part, of in zip(target.elts, values, strict=True):
        yield from _pairs(part, of)


def _neighbours(tree: ast.Module, path: str, files: Files) -> Iterator[str]:
    seen, waiting = {path}, [(tree, path)]
    while waiting and len(seen) < _MOST_MODULES:
        current, place = waiting.pop()
        for name in _imported(current):
            stem = name.replace(".", "/")
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                where = beside(place, candidate)
                text = None if where in seen else files.read(where)
                if text is None:
                    continue
                seen.add(where)
                yield text
                try:
                    waiting.append((ast.parse(text), where))
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    continue


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base:
                yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


# --- expressions ----------------------------------------------------------------------------


def unparse(node: ast.AST) -> str:
    """Return the text of a node; empty if it is too deeply nested."""
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


def values_of(script: PythonScript, node: ast.expr) -> list[ast.expr]:
    """Return the values assigned to a name or attribute; for other nodes, the node itself."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return [node]
    return script.assigned.get(unparse(node), [])


def origin(script: PythonScript, node: ast.expr | None) -> str:
    """Return the text of an expression and of all values it is derived from; empty for None."""
    parts, seen, waiting = list[str](), set[str](), [(node, 0)] if node is not None else []
    while waiting and len(parts) < _MOST_PARTS:
        current, depth = waiting.pop(0)
        text = unparse(current)
        if text in seen:
            continue
        seen.add(text)
        parts.append(text)
        if depth < _DEEPEST:
            names = (n for n in ast.walk(current) if isinstance(n, ast.Name | ast.Attribute))
            found = (value for name in names for value in values_of(script, name))
            waiting += [(value, depth + 1) for value in found if value is not current]
    return " ; ".join(parts)


# --- position of a node ---------------------------------------------------------------------


def ancestors(script: PythonScript, node: ast.AST) -> Iterator[ast.AST]:
    while (parent := script.parents.get(node)) is not None:
        yield parent
        node = parent


def is_conditional(script: PythonScript, node: ast.AST) -> bool:
    """Tell whether a node is conditional, as in `if "RANK" not in os.environ`."""
    for parent in ancestors(script, node):
        if isinstance(parent, ast.IfExp | ast.Try | ast.BoolOp):
            return True
        if isinstance(parent, ast.If) and "__name__" not in unparse(parent.test):
            return True
    return False


def enclosing_function(script: PythonScript, node: ast.AST) -> Function | None:
    for parent in ancestors(script, node):
        if isinstance(parent, Function):
            return parent
    return None
