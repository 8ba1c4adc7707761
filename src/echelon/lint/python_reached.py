"""Which parts of a Python script run whenever it runs, functions and loops included. Pure."""

import ast
from collections.abc import Iterator
from functools import lru_cache

from echelon.lint.python_script import (
    Function,
    PythonScript,
    ancestors,
    constant,
    enclosing_function,
    unparse,
    values_of,
)

_MOST_KEPT = 32
"""Scripts to keep, because several jobs often start the same one."""


def is_in_running(python: PythonScript, node: ast.AST) -> bool:
    """Tell whether the script, or a function that it calls in no branch, always reaches a node."""
    return _scope(python, node) in _running(python)


@lru_cache(maxsize=_MOST_KEPT)
def _running(python: PythonScript) -> frozenset[ast.AST]:
    """Return the script, and the functions that it calls in no branch."""
    found: set[ast.AST] = {python.tree}
    used = [(_scope(python, node), function) for node, function in _uses(python)]
    while more := {function for scope, function in used if scope in found} - found:
        found |= more
    return frozenset(found)


def _scope(python: PythonScript, node: ast.AST) -> ast.AST | None:
    """Return the function or the script that always reaches a node; None if it may not."""
    below = node
    for parent in ancestors(python, node):
        if not _always_enters(python, parent, below):
            return None
        if isinstance(parent, Function) and below in parent.body:
            return parent if _is_before_returns(python, parent, node) else None
        below = parent
    return below


def _always_enters(python: PythonScript, parent: ast.AST, below: ast.AST) -> bool:
    """Tell whether a statement or an expression always reaches a part of it."""
    if isinstance(parent, ast.If | ast.IfExp):
        value = "__name__" in unparse(parent.test) or constant_test(python, parent.test)
        otherwise = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
        return below is parent.test or value is (below not in otherwise)
    if isinstance(parent, ast.BoolOp):
        return below is parent.values[0]
    return not isinstance(parent, ast.ExceptHandler | ast.Lambda | ast.match_case)


def _is_before_returns(python: PythonScript, function: Function, node: ast.AST) -> bool:
    first = _first_returns(python).get(function)
    return first is None or getattr(node, "lineno", 0) <= first


@lru_cache(maxsize=_MOST_KEPT)
def _first_returns(python: PythonScript) -> dict[Function | None, int]:
    """Return the line where the first `return` of each function ends."""
    found: dict[Function | None, int] = {}
    for node in python.nodes:
        if isinstance(node, ast.Return):
            function, end = enclosing_function(python, node), node.end_lineno or node.lineno
            found[function] = min(end, found.get(function, end))
    return found


def _uses(python: PythonScript) -> Iterator[tuple[ast.AST, Function]]:
    """Yield where a script calls a function, or hands it to one that may call it."""
    for name, functions in python.functions.items():
        for function in functions:
            owner = python.parents[function]
            if not isinstance(owner, ast.ClassDef):
                continue
            for call in python.calls(owner.name if name == "__init__" else name):
                if name == "__init__" or isinstance(call.func, ast.Attribute):
                    yield call, function
    for node in python.nodes:
        for function in python.functions.get(node.id, []) if isinstance(node, ast.Name) else ():
            if not isinstance(python.parents[function], ast.ClassDef):
                yield node, function


def constant_test(python: PythonScript, test: ast.expr) -> bool | None:
    """Return the value of a condition on a flag that the script sets once; None if unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = constant_test(python, test.operand)
        return None if inner is None else not inner
    values = values_of(python, test)
    value = constant(values[0]) if len(values) == 1 else None
    return value if isinstance(value, bool) else None
