"""A Python script as rules ask about it: calls by name, guards around them, where values come from.

Only what the script itself says counts. Modules beside it are looked into for words alone: what is
missing here may be done there.
"""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from echelon.checks.lint.files import Files, beside

_MOST_MODULES = 20
_MOST_PARTS = 60
_DEEPEST = 4
"""Names within names, and calls within calls, that are followed."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonScript:
    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All of the tree."""
    assigned: dict[str, list[ast.expr]]
    """What names and attributes are assigned, by their text."""
    functions: dict[str, list[Function]]
    """Those that it defines, by their names."""
    called: dict[str, list[ast.Call]]
    """Its calls, by the last part of their functions' names."""
    parents: dict[ast.AST, ast.AST]
    """The node that each is in."""
    neighbours: str
    """The text of modules beside it that it imports."""

    def calls(self, *names: str) -> list[ast.Call]:
        """Return calls of functions by the last part of their names."""
        found = [call for name in names for call in self.called.get(name, [])]
        return sorted(found, key=lambda call: call.lineno)

    def mentions(self, *words: str) -> bool:
        """Tell whether one of these stands anywhere in it, or in a module beside it."""
        return any(word in self.text or word in self.neighbours for word in words)

    @property
    def is_distributed(self) -> bool:
        return bool(self.calls("init_process_group"))


def parse_python(text: str, *, path: str, files: Files) -> PythonScript | None:
    """Return a script; None when it is not Python as we know it."""
    text = text.removeprefix("\ufeff")  # which Python takes
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string
            tree = ast.parse(text)
            nodes = tuple(ast.walk(tree))
            parents = {c: node for node in nodes for c in ast.iter_child_nodes(node)}
            assigned = _assigned(nodes)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    neighbours = "\n".join(_neighbours(tree, path, files))
    return PythonScript(
        path=path,
        text=text,
        tree=tree,
        nodes=nodes,
        assigned=assigned,
        functions=_functions(nodes),
        called=_called(nodes),
        parents=parents,
        neighbours=neighbours,
    )


def _assigned(nodes: tuple[ast.AST, ...]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target, value in _bound(node):
            found.setdefault(unparse(target), []).append(value)
    return found


def _bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a node gives a name to, those of `a, b = …` and `with … as a` too."""
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


def _functions(nodes: tuple[ast.AST, ...]) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for node in nodes:
        if isinstance(node, Function):
            found.setdefault(node.name, []).append(node)
    return found


def _called(nodes: tuple[ast.AST, ...]) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and (name := last_name(node.func)):
            found.setdefault(name, []).append(node)
    return found


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
    """Return a node's text; none of an expression that is too long for Python to write it."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def last_name(node: ast.AST) -> str:
    """Return `c` of a.b.c, or of c."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument, by its name or place."""
    for given in call.keywords:
        if given.arg == name:
            return given.value
    if position is not None and len(call.args) > position:
        return call.args[position]
    return None


def has_spread(call: ast.Call) -> bool:
    """Tell whether it has arguments that are not written out: *these or **these."""
    return any(given.arg is None for given in call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    )


def constant(node: ast.AST | None) -> object:
    """Return a literal's value; None for what is none."""
    return node.value if isinstance(node, ast.Constant) else None


def values_of(script: PythonScript, node: ast.expr) -> list[ast.expr]:
    """Return what a name or attribute is assigned anywhere in the script; else the node itself."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return [node]
    return script.assigned.get(unparse(node), [])


def origin(script: PythonScript, node: ast.expr) -> str:
    """Return the text of all that an expression was made of, through the names in it."""
    parts, seen, waiting = list[str](), set[str](), [(node, 0)]
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


# --- where a call stands --------------------------------------------------------------------


def ancestors(script: PythonScript, node: ast.AST) -> Iterator[ast.AST]:
    while (parent := script.parents.get(node)) is not None:
        yield parent
        node = parent


def is_conditional(script: PythonScript, node: ast.AST) -> bool:
    """Tell whether a node is reached only sometimes, as behind `if "RANK" not in os.environ`."""
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
