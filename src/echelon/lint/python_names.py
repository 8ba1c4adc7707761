"""The names that a Python script reads and never binds, and the lines that it always runs."""

import ast
import builtins
from functools import lru_cache

from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, ancestors, unparse

_OF_MODULES = frozenset(
    {
        *("__file__", "__name__", "__doc__", "__builtins__", "__spec__", "__package__"),
        *("__loader__", "__path__", "__annotations__", "__class__", "__module__", "__qualname__"),
        # Names that other programs add to the builtins, or that Python 2 has.
        *("_", "profile", "ic", "display", "get_ipython", "spark", "sc", "dbutils", "snakemake"),
        *("reload", "execfile", "cmp", "file", "intern", "apply", "buffer", "WindowsError"),
        *("long", "unicode", "xrange", "basestring", "raw_input", "unichr", "reduce"),
    }
)
_UNREADABLE = pattern(
    r"import\s?\*|builtins?\b|globals\(\)|exec\(|__getattr__|NameError|(?:locals|vars)\(\)|"
    r"\.install\(|setattr\(sys"
)
_STRAIGHT = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_MAYBE = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension, ast.Await, ast.Yield)
"""Expressions whose parts may not be evaluated."""
_STAYS = (frozenset(dir(builtins)) - {"exit", "quit", "exec", "eval", "__import__"}) | {
    *("torch", "numpy", "np", "random", "logging", "time", "math", "json", "warnings", "nn"),
    *("dist", "F", "Path", "pathlib", "datetime", "platform"),
}
"""Functions, and modules whose functions, that do not end the script."""
_BINDING: dict[type[ast.AST], str] = {
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef), "name"),
    **dict.fromkeys((ast.ExceptHandler, ast.MatchAs, ast.MatchStar), "name"),
    **dict.fromkeys((ast.Global, ast.Nonlocal), "names"),
    ast.arg: "arg",
    ast.MatchMapping: "rest",
}
"""The fields of nodes that bind a name, or several."""


@lru_cache(maxsize=32)
def undefined_names(python: PythonScript) -> dict[str, list[ast.Name]]:
    """Return the names that no scope of a script binds, and where it reads them."""
    if _UNREADABLE.search(python.text):
        return {}
    known = set(dir(builtins)) | _OF_MODULES
    read: list[ast.Name] = []
    for node in python.nodes:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.append(node)
            else:
                known.add(node.id)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif (field := _BINDING.get(type(node))) is not None:
            bound = getattr(node, field) or ()
            known.update([bound] if isinstance(bound, str) else bound)
    found: dict[str, list[ast.Name]] = {}
    for name in read:
        if name.id not in known and not _is_annotation(python, name) and not _is_dead(python, name):
            found.setdefault(name.id, []).append(name)
    return found


def _is_annotation(python: PythonScript, node: ast.AST) -> bool:
    for parent in ancestors(python, node):
        if isinstance(parent, ast.arg) or getattr(parent, "annotation", None) is node:
            return True
        if getattr(parent, "returns", None) is node:
            return True
        node = parent
    return False


def _is_dead(python: PythonScript, node: ast.AST) -> bool:
    """Tell whether a statement before a node, in a block around it, always leaves the block."""
    for parent in ancestors(python, node):
        for block in (getattr(parent, field, None) for field in ("body", "orelse", "finalbody")):
            before = block[: block.index(node)] if isinstance(block, list) and node in block else []
            if any(isinstance(one, _LEAVES) for one in before):
                return True
        node = parent
    return False


def _first_name(node: ast.AST) -> str:
    """Return the name at the start of an expression: `a` for a.b(c)[0]; empty if there is none."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "func", None) or getattr(node, "value", None)
        if not isinstance(inner, ast.AST):
            return ""
        node = inner
    return node.id


def lines_always_run(python: PythonScript) -> frozenset[int]:
    """Return the lines that run whatever the arguments are: up to the first call or branch."""
    own = {n.name for n in python.nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= set(python.assigned)
    lines, waiting = set[int](), list(python.tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.If) and unparse(node.test) == "__name__ == '__main__'":
            waiting = list(node.body)
            continue
        if isinstance(node, _DEFINITIONS):
            continue
        if not isinstance(node, _STRAIGHT):
            break
        parts = list(ast.walk(node))
        if not any(isinstance(part, _MAYBE) for part in parts):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        called = [_first_name(part) for part in parts if isinstance(part, ast.Call)]
        if any(name in own or name not in _STAYS for name in called):
            break
    return frozenset(lines)
