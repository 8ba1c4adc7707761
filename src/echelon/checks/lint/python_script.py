"""A Python script as rules ask about it: calls by name, guards around them, where values come from.

Only what the script itself says counts. Modules beside it are looked into for words alone: what is
missing here may be done there.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from echelon.checks.lint.files import Files, beside

_MOST_MODULES = 20
_MOST_PARTS = 60
_DEEPEST = 4
"""Names within names, and calls within calls, that are followed."""
_RANK_WORDS = re.compile(
    r"rank|is_main|is_master|is_primary|main_process|master|is_chief|is_zero|procid|zero_first",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonScript:
    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All of the tree."""
    assigned: dict[str, list[ast.expr]]
    """What names and attributes are assigned, by their text."""
    parents: dict[ast.AST, ast.AST]
    """The node that each is in."""
    neighbours: str
    """The text of modules beside it that it imports."""

    def calls(self, *names: str) -> list[ast.Call]:
        """Return calls of functions by the last part of their names."""
        found = (node for node in self.nodes if isinstance(node, ast.Call))
        return sorted(
            (call for call in found if last_name(call.func) in names), key=lambda c: c.lineno
        )

    def mentions(self, *words: str) -> bool:
        """Tell whether one of these stands anywhere in it, or in a module beside it."""
        return any(word in self.text or word in self.neighbours for word in words)

    @property
    def is_distributed(self) -> bool:
        return bool(self.calls("init_process_group"))


def parse_python(text: str, *, path: str, files: Files) -> PythonScript | None:
    """Return a script; None when it is not Python as we know it."""
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
        parents=parents,
        neighbours=neighbours,
    )


def _assigned(nodes: tuple[ast.AST, ...]) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.setdefault(ast.unparse(target), []).append(node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            found.setdefault(ast.unparse(node.target), []).append(node.value)
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
    return script.assigned.get(ast.unparse(node), [])


def origin(script: PythonScript, node: ast.expr) -> str:
    """Return the text of all that an expression was made of, through the names in it."""
    parts, seen, waiting = list[str](), set[str](), [(node, 0)]
    while waiting and len(parts) < _MOST_PARTS:
        current, depth = waiting.pop(0)
        text = ast.unparse(current)
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
        if isinstance(parent, ast.If) and "__name__" not in ast.unparse(parent.test):
            return True
    return False


def enclosing_function(
    script: PythonScript, node: ast.AST
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for parent in ancestors(script, node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return parent
    return None


def guards(script: PythonScript, node: ast.AST) -> list[str]:
    """Return the conditions about ranks under which a node is reached, in this script."""
    return _guards(script, node, frozenset())


def _guards(script: PythonScript, node: ast.AST, seen: frozenset[str]) -> list[str]:
    found = _own_guards(script, node)
    function = enclosing_function(script, node)
    if found or function is None or function.name in seen or len(seen) >= _DEEPEST:
        return found
    callers = [call for call in script.calls(function.name) if call is not node]
    if not callers:
        return []
    outer = [_guards(script, call, seen | {function.name}) for call in callers]
    return outer[0] if all(outer) else []


def is_called(script: PythonScript, node: ast.AST) -> bool:
    """Tell whether the script itself reaches a node: at its top, or through calls that are here."""
    function = enclosing_function(script, node)
    if function is None:
        return True
    return any(last_name(call.func) == function.name for call in script.calls(function.name))


def _own_guards(script: PythonScript, node: ast.AST) -> list[str]:
    found, below = [], node
    for parent in ancestors(script, node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While):
            inside = parent.test is not below
            if inside and _RANK_WORDS.search(ast.unparse(parent.test)):
                found.append(ast.unparse(parent.test))
        elif isinstance(parent, ast.BoolOp):
            found += [t for t in map(ast.unparse, parent.values) if _RANK_WORDS.search(t)]
        elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            found += _early_returns(parent, below)
            found += [d for d in map(ast.unparse, parent.decorator_list) if _RANK_WORDS.search(d)]
            break
        elif isinstance(parent, ast.With):
            items = [ast.unparse(item.context_expr) for item in parent.items]
            found += [item for item in items if _RANK_WORDS.search(item)]
        below = parent
    return found


def _early_returns(function: ast.AST, statement: ast.AST) -> Iterator[str]:
    """Yield `if rank != 0: return` that stand before a statement."""
    for other in getattr(function, "body", []):
        if other is statement:
            return
        if isinstance(other, ast.If) and isinstance(other.body[-1], ast.Return | ast.Raise):
            test = ast.unparse(other.test)
            if _RANK_WORDS.search(test):
                yield f"not ({test})"
