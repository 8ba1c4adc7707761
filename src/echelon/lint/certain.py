"""Which errors of a Python script are certain: on lines that it reaches whenever it runs. Pure."""

import ast
import builtins
from collections.abc import Iterator, Sequence

from echelon.lint.rule import Finding, Severity

_CODES = frozenset({"E601", "E624", "E626"})
"""Rules whose line raises an exception."""
_STRAIGHT = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
_MAYBE = (
    *(ast.Lambda, ast.IfExp, ast.BoolOp, ast.Await, ast.Yield, ast.YieldFrom),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
"""Expressions whose parts may not be evaluated."""
_STAYS = frozenset(dir(builtins)) - {"exit", "quit", "exec", "eval", "__import__"}
_STAYING_MODULES = frozenset(
    {
        *(
            "torch",
            "numpy",
            "np",
            "random",
            "logging",
            "time",
            "math",
            "json",
            "warnings",
            "platform",
        ),
        *("nn", "dist", "F", "Path", "pathlib", "datetime"),
    }
)
"""Modules whose functions do not end the script."""
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HARMLESS = (*_DEFINES, ast.Import, ast.ImportFrom)


def find_certain(text: str, findings: Sequence[Finding]) -> list[Finding]:
    """Return the errors that end the script whatever its arguments are."""
    try:
        tree = ast.parse(text)
        own = {node.name for node in ast.walk(tree) if isinstance(node, _DEFINES)}
        stored = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        own |= {node.id for node in stored if isinstance(node.ctx, ast.Store)}
        lines = {line for node in _reached(tree.body, own) for line in _lines(node)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        finding
        for finding in findings
        if finding.code in _CODES and finding.severity is Severity.ERROR and finding.line in lines
    ]


def _reached(body: list[ast.stmt], own: set[str]) -> Iterator[ast.stmt]:
    """Yield the statements at the start of a script that always run, up to the first branch.

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
        elif not isinstance(node, _HARMLESS):
            return


def _may_exit(call: ast.Call, own: set[str]) -> bool:
    """Tell whether a call may end the script: all may, except for builtins and a few modules'."""
    first, _, rest = ast.unparse(call.func).partition(".")
    return first in own or (first not in _STAYING_MODULES if rest else first not in _STAYS)


def _lines(node: ast.stmt) -> Iterator[int]:
    if any(isinstance(part, _MAYBE) for part in ast.walk(node)):
        return
    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
