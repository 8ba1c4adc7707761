"""Which lines a Python script reaches whenever it runs, and which of its errors are there. Pure."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from functools import lru_cache

from echelon.lint.rule import Finding, Severity

_CODES = frozenset({"E601", "E624", "E626"})
"""Rules whose line raises an exception."""
_MOST_KEPT = 32
"""Scripts to keep, because several jobs often start the same one."""
_STRAIGHT = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
_MAYBE = (
    *(ast.Lambda, ast.IfExp, ast.BoolOp, ast.Await, ast.Yield, ast.YieldFrom),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Expressions whose parts may not be evaluated."""
_STAYS = frozenset(dir(builtins)) - {"exit", "quit", "exec", "eval", "__import__"}
_STAYING_MODULES = frozenset(
    {
        *("torch", "numpy", "np", "random", "logging", "time", "math", "json", "warnings"),
        "platform",
        *("nn", "dist", "F", "Path", "pathlib", "datetime"),
    }
)
"""Modules whose functions do not end the script."""
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HARMLESS = (*_DEFINES, ast.Import, ast.ImportFrom)


def find_certain(text: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return the errors that end the script whatever its arguments are."""
    lines = lines_always_reached(text)
    return [
        finding
        for finding in findings
        if finding.code in _CODES and finding.severity is Severity.ERROR and finding.line in lines
    ]


@lru_cache(maxsize=_MOST_KEPT)
def lines_always_reached(text: str) -> frozenset[int]:
    """Return the lines of a Python script that run whatever its arguments are."""
    try:
        tree = ast.parse(text)
        own = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINES)}
        stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        own |= {node.id for node in stored if isinstance(node.ctx, ast.Store)}
        return frozenset(line for node in _reached(tree.body, own) for line in _lines(node))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()


def _reached(body: list[ast.stmt], own: set[str]) -> Iterator[ast.stmt | ast.expr]:
    """Yield the statements at the start of a script that always run, and the first condition.

    Args:
        body: the statements.
        own: the names that the script defines itself.
    """
    for node in body:
        if isinstance(node, _STRAIGHT):
            yield node
            calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
            if any(_may_exit(call, own) for call in calls):  # such as main() or app.run()
                return
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from _reached(node.body, own)
            return
        elif isinstance(node, ast.If):
            yield node.test
            return
        elif not isinstance(node, _HARMLESS):
            return


def _may_exit(call: ast.Call, own: set[str]) -> bool:
    """Tell whether a call may end the script: all may, except for builtins and a few modules'."""
    first, _, rest = ast.unparse(call.func).partition(".")
    return first in own or (first not in _STAYING_MODULES if rest else first not in _STAYS)


def _lines(node: ast.stmt | ast.expr) -> Iterator[int]:
    if any(isinstance(part, _MAYBE) for part in ast.walk(node)):
        return
    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
