"""A Python script as the rules use it: calls by name, and the origin of values.

Rules check the script itself. Imported modules are only searched for words, because they may do
what the script does not.
"""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from echelon.lint.files import Files, Place, beside
from echelon.lint.patterns import pattern

_MOST_MODULES = 20
_MOST_PARTS = 60
_MOST_KEPT = 32
"""Scripts to keep, because several jobs often start the same one."""
_IMPORT = pattern(
    r"^[ \t]*(?:from[ \t]+\.*([\w.]*)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#(]*))"
    r"|import[ \t]+([^\n#]*))",
    re.MULTILINE,
)
_NAME = pattern(r"[\w.]+")
_OF_INTEREST = ("DistributedSampler", "torch.save", "init_process_group", "shuffle=True")
"""Words in imported modules that the rules have something to say about."""
_PARSER = "ArgumentParser("
_DEEPEST = 4
"""Maximum number of names to follow."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
_T = TypeVar("_T")
_ALSO_BIND = (ast.AnnAssign, ast.NamedExpr, ast.AugAssign)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PythonScript:
    path: str
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree."""
    assigned: dict[str, list[ast.expr]]
    """Values by the text of the name or attribute they are assigned to."""
    passed: dict[str, list[ast.expr]]
    """Values by the name of the attribute or keyword argument that they are given to."""
    functions: dict[str, list[Function]]
    """Functions that it defines, by name."""
    called: dict[str, list[ast.Call]]
    """Calls by the last part of the function name."""
    parents: dict[ast.AST, ast.AST]
    """The parent of each node."""
    neighbours: str
    """The text of the local modules that it imports."""
    modules: "tuple[PythonScript, ...]" = ()
    """The local modules that it imports itself."""
    parser_module: "PythonScript | None" = None
    """The local module that has the only argparse parser, if the script imports it itself."""

    def at(self, node: ast.stmt | ast.expr | ast.keyword) -> Place:
        end = node.end_lineno or node.lineno
        return Place(
            self.path,
            node.lineno,
            self._column(node.lineno, node.col_offset),
            end,
            self._column(end, node.end_col_offset or node.col_offset),
        )

    def _column(self, line: int, offset: int) -> int:
        """Return the column of an offset in bytes."""
        text = self.text.split("\n")[line - 1]
        return (offset if text.isascii() else len(text.encode()[:offset].decode())) + 1

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


@lru_cache(maxsize=_MOST_KEPT)
def parse_python(
    text: str, *, path: str, files: Files, importer: str | None = None
) -> PythonScript | None:
    """Return a script; None if this Python version cannot parse it.

    Args:
        text: the script.
        path: where it is.
        files: where imported modules are.
        importer: for a module, the text of the script that imports it and of its other modules.
    """
    text = text.removeprefix("\ufeff")  # Python accepts a byte order mark
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in strings
            tree = ast.parse(text)
            nodes, parents = _walk(tree)
            assigned = _grouped((unparse(to), value) for n in nodes for to, value in _bound(n))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    keywords = ((n.arg, n.value) for n in nodes if isinstance(n, ast.keyword) and n.arg)
    attributes = (
        (name.rpartition(".")[2], value)
        for name, values in assigned.items()
        if "." in name
        for value in values
    )
    found = list(_neighbours(text, path, files)) if importer is None else []
    neighbours = "\n".join(other for _, other, _ in found) if importer is None else importer
    parsed = (
        parse_python(other, path=place, files=files, importer=f"{text}\n{neighbours}")
        for place, other, direct in found
        if direct and any(word in other for word in _OF_INTEREST)
    )
    elsewhere = [(place, other) for place, other, direct in found if direct and _PARSER in other]
    parser_module = None
    if _PARSER not in text and elsewhere and neighbours.count(_PARSER) == 1:
        place, other = elsewhere[0]
        parser_module = parse_python(other, path=place, files=files, importer=text)
    return PythonScript(
        path=path,
        text=text,
        tree=tree,
        nodes=nodes,
        assigned=assigned,
        passed=_grouped((*attributes, *keywords)),
        functions=_grouped((n.name, n) for n in nodes if isinstance(n, Function)),
        called=_grouped((last_name(n.func), n) for n in nodes if isinstance(n, ast.Call)),
        parents=parents,
        neighbours=neighbours,
        modules=tuple(module for module in parsed if module is not None),
        parser_module=parser_module,
    )


def _walk(tree: ast.Module) -> tuple[tuple[ast.AST, ...], dict[ast.AST, ast.AST]]:
    """Return all nodes of a tree, level by level, and the parent of each."""
    nodes: list[ast.AST] = [tree]
    parents: dict[ast.AST, ast.AST] = {}
    for node in nodes:  # grows on the way
        for name in node._fields:
            value = getattr(node, name, None)
            children = value if isinstance(value, list) else (value,)
            for child in children:
                if isinstance(child, ast.AST):
                    nodes.append(child)
                    parents[child] = node
    return tuple(nodes), parents


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
    elif isinstance(node, _ALSO_BIND) and node.value is not None:
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


def _neighbours(script: str, path: str, files: Files) -> Iterator[tuple[str, str, bool]]:
    """Yield path and text of local modules, and whether the script imports them itself."""
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
                    yield where, text, place == path
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
