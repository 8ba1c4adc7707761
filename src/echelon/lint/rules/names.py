"""E626 and E627: undefined names and syntax errors in Python."""

import ast
import builtins
import difflib
import re
import symtable
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from echelon.lint.certain import lines_always_reached
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.python_reached import constant_test, is_in_running
from echelon.lint.python_script import (
    Function,
    PythonScript,
    ancestors,
)
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_MODULE_NAMES = frozenset(
    {
        "__file__",
        "__name__",
        "__doc__",
        "__builtins__",
        "__spec__",
        "__package__",
        "__loader__",
        "__path__",
        "__annotations__",
        "__class__",
        "WindowsError",
        "__dict__",
        "__module__",
        "__qualname__",
        "reveal_type",
        # Names of Python 2, used after a version check.
        *("long", "unicode", "xrange", "basestring", "raw_input", "unichr", "reduce"),
    }
)
_INJECTED = frozenset(
    {
        *("_", "profile", "ic", "display", "get_ipython", "spark", "sc", "dbutils", "snakemake"),
        *("reload", "execfile", "cmp", "file", "intern", "apply", "buffer", "pydevd"),
    }
)
"""Names that other programs add to the builtins, or that Python 2 has."""
_OF_PYTHON_2 = pattern(
    r"(?i)in call to '(?:print|exec)'|multiple exception types|leading zeros|inconsistent use of "
    r"tabs|unindent does not match|invalid (?:hexadecimal|decimal|octal|digit)|^invalid syntax$"
)
"""Messages about text that Python 2 may accept."""
_PRINTS_2 = pattern(
    r"(?m)^[ \t]*(?:print[ \t]+[^\s(=.,:\[]|raise \w+,|exec[ \t]+['\"\w]|except [\w.() ,]+, \w+:)"
    r"|<>|\b0\d+\b|\b\d+L\b|\t"
)
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MOST_KEPT = 32
"""Scripts to keep, because several jobs often start the same one."""
_MOST_NAMES = 100
"""How many undefined names of a script to report."""
_MOST_GUESSES = 20
"""For how many names to look for a similar one, which takes time."""
_HERE = "Python {}.{}".format(*sys.version_info)
_NESTED_QUOTES = pattern(
    r"\b[rR]?[fF](?:'[^'\n{}]*(?:\{[^{}'\n]*\}[^'\n{}]*)*\{[^{}'\n]*'"
    r'|"[^"\n{}]*(?:\{[^{}"\n]*\}[^"\n{}]*)*\{[^{}"\n]*")'
)
"""A string in an f-string with the same quotes, which Python 3.12 accepts."""
_NEWER = (
    ((3, 12), pattern(r"^\s*type\s+\w+\s*(\[.*\]\s*)?=")),
    ((3, 12), pattern(r"^\s*(async\s+)?(def|class)\s+\w+\s*\[")),
    ((3, 12), pattern(r"\b(f|rf|fr)['\"]", re.IGNORECASE)),  # nested quotes
    ((3, 14), pattern(r"\b(t|rt|tr)['\"]", re.IGNORECASE)),
    ((3, 14), pattern(r"^\s*except\*?\s+[\w.]+\s*,")),  # without parentheses
    ((3, 15), pattern(r"^\s*lazy\s+(import|from)\b")),
)
"""Syntax by the Python version that introduced it."""


def find_undefined_names(subject: Subject) -> Iterator[Hit]:
    for python in subject.pythons:
        undefined = _undefined(python)
        for number, (name, nodes) in enumerate(islice(undefined.items(), _MOST_NAMES)):
            reached = [node for node in nodes if not _is_dead(python, node)]
            always = lines_always_reached(python.text) if reached else frozenset()
            runs = _always_run(subject, python) and name not in _INJECTED
            sure = [node for node in reached if node.lineno in always and runs]
            if reached:
                kind = WARNING if any(is_in_running(python, n) for n in reached) else ADVICE
                yield Hit(
                    at=Place(python.path, min(node.lineno for node in sure or reached)),
                    what=f"`{name}` is not defined. This line raises a NameError"
                    + ("." if sure else " if the script reaches it."),
                    fix=_guess(python, (sure or reached)[0])
                    if number < _MOST_GUESSES
                    else f"define or import {name}",
                    severity=None if sure else kind,
                )


def _always_run(subject: Subject, python: PythonScript) -> bool:
    """Tell whether a job always runs a script; True without a job."""
    commands = [launch.command for launch in subject.with_python(python)]
    return not commands or any(c.certain or c.looped or c.piped_into for c in commands)


def _is_dead(python: PythonScript, node: ast.AST) -> bool:
    """Tell whether a node is after a `return` or an exit, or in a branch that never runs."""
    for parent in ancestors(python, node):
        for block in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if not isinstance(block, list) or node not in block:
                continue
            if any(map(_leaves, block[: block.index(node)])):
                return True
        if isinstance(parent, ast.If) and node is not parent.test:
            value = constant_test(python, parent.test)
            if value is not None and value is (node in parent.orelse):
                return True
        node = parent
    return False


def _leaves(statement: ast.stmt) -> bool:
    """Tell whether the statements after this one in its block never run."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in _EXITS
    return isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _undefined(python: PythonScript) -> dict[str, list[ast.Name]]:
    if re.search(
        r"import\s?\*|builtins?\b|globals\(\)|exec\(|__getattr__|NameError|(?:locals|vars)\(\)|"
        r"\.install\(|setattr\(sys",
        python.text,
    ):
        return {}
    try:
        top = symtable.symtable(python.text, python.path, "exec")
    except (SyntaxError, ValueError, RecursionError):
        return {}
    known = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    known |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}
    tables, wanted = [top], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global() and (symbol.is_assigned() or symbol.is_imported()):
                known.add(symbol.get_name())  # declared `global` in a function
            elif symbol.is_referenced() and (symbol.is_global() or table is top):
                wanted.add(symbol.get_name())
    missing = wanted - known - set(dir(builtins)) - _MODULE_NAMES
    found: dict[str, list[ast.Name]] = {}
    for node in python.nodes:
        if not isinstance(node, ast.Name) or node.id not in missing:
            continue
        if not _in_annotation(python, node) and not _is_local(python, node):
            found.setdefault(node.id, []).append(node)
    return found


def _is_local(python: PythonScript, name: ast.Name) -> bool:
    """Tell whether a name is local to an enclosing function, and so not the undefined one."""
    for scope in ancestors(python, name):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if name.id in _stored_in(scope):
                return True
        elif isinstance(scope, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = (node for part in scope.generators for node in ast.walk(part.target))
            if any(isinstance(node, ast.Name) and node.id == name.id for node in targets):
                return True
    return False


@lru_cache(maxsize=_MOST_KEPT)
def _stored_in(scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> frozenset[str]:
    """Return the arguments of a function, and the names that it or a part of it stores."""
    names = {argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)}
    inner = (node for node in ast.walk(scope) if isinstance(node, ast.Name))
    return frozenset(names | {node.id for node in inner if isinstance(node.ctx, ast.Store)})


def _in_annotation(python: PythonScript, node: ast.AST) -> bool:
    while (parent := python.parents.get(node)) is not None:
        if isinstance(parent, ast.arg) or (
            isinstance(parent, ast.AnnAssign) and parent.annotation is node
        ):
            return True
        if isinstance(parent, ast.FunctionDef) and parent.returns is node:
            return True
        node = parent
    return False


def _guess(python: PythonScript, node: ast.Name) -> str:
    """Return a similar name of the same kind that the line can use, or an instruction."""
    known = {name for name in _visible(python, node) if _kind(name) == _kind(node.id)}
    near = difflib.get_close_matches(node.id, sorted(known), n=1, cutoff=0.8)
    return near[0] if near else f"define or import {node.id}"


def _kind(name: str) -> str:
    """Return whether a name looks like that of a constant, a class or a variable."""
    if name.isupper():
        return "constant"
    return "class" if name.strip("_")[:1].isupper() else "variable"


def _visible(python: PythonScript, node: ast.AST) -> Iterator[str]:
    """Yield the names that the script and the functions around a node bind."""
    for scope in ancestors(python, node):
        if isinstance(scope, Function | ast.Module):
            yield from _bound_in(scope)


@lru_cache(maxsize=_MOST_KEPT)
def _bound_in(scope: Function | ast.Module) -> frozenset[str]:
    return frozenset(_bindings(scope))


def _bindings(scope: Function | ast.Module) -> Iterator[str]:
    waiting: list[ast.AST] = [*scope.body, *([scope.args] if isinstance(scope, Function) else [])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DEFINES):
            yield node.name
            continue
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting += ast.iter_child_nodes(node)


def find_syntax_error(subject: Subject) -> Iterator[Hit]:
    for path, text in subject.unread:
        try:
            ast.parse(text)
        except SyntaxError as error:
            yield _refused(subject, path, text, error)
        except (ValueError, RecursionError, MemoryError):
            yield Hit(
                at=Place(path, 1),
                what=f"{_HERE} cannot parse the file: it is nested too deeply or contains too long "
                "an expression. Lint did not check it.",
                fix=f"python -m py_compile {path}",
                severity=ADVICE,
            )


def _refused(subject: Subject, path: str, text: str, error: SyntaxError) -> Hit:
    line = error.lineno or 1
    newer = _newer_python(text.split("\n")[line - 1] if line <= text.count("\n") + 1 else "", error)
    if not newer and _NESTED_QUOTES.search(text) and sys.version_info < (3, 12):
        newer = "3.12"  # the error may be reported at a bracket before the string
    shown = text.split("\n")[line - 1] if line <= text.count("\n") + 1 else ""
    keyword = re.search(r"(?:[.,(\s]|^)(?:async|await)\s*(?:=[^=]|[),.]|$)", shown)
    older = "" if newer else "3.6" if keyword else _older_python(subject, text, error)
    return Hit(
        at=Place(path, line),
        what=f"{_HERE} cannot parse the file: {error.msg}. Lint did not check it."
        + (f" Python {newer or older} may accept it." if newer or older else ""),
        fix=f"run the job with Python {newer} or later"
        if newer
        else f"python -m py_compile {path}",
        severity=ADVICE if newer else WARNING if older else None,
    )


def _older_python(subject: Subject, text: str, error: SyntaxError) -> str:
    """Return '2' if a script may be for Python 2, and its job does not ask for Python 3."""
    told = any(
        re.search(r"\bpython3|torchrun|accelerate", one.launch.command.text)
        for one in subject.started
    )
    for_2 = not told and _OF_PYTHON_2.search(error.msg) and _PRINTS_2.search(text)
    return "2" if for_2 else ""


def _newer_python(line: str, error: SyntaxError) -> str:
    """Return the first newer Python version that may accept a line; empty if there is none."""
    versions = [since for since, pattern in _NEWER if pattern.search(line)]
    if error.msg.startswith("f-string"):  # the line number may be relative to the string
        versions.append((3, 12))
    later = [since for since in versions if since > sys.version_info[:2]]
    return "{}.{}".format(*min(later)) if later else ""


RULES = (
    Rule(
        code="E626",
        title="undefined name",
        severity=ERROR,
        check=find_undefined_names,
        why="Python finds an undefined name only when it reaches the line. On a cluster, that can "
        "be after hours in the queue. It is a warning in a function or a loop, and advice in a "
        "branch, or in a function that lint does not see called.",
        example="""\
 --- train.py
 trainer = object()
-print(tainer)    # <- here
+print(trainer)
""",
    ),
    Rule(
        code="E627",
        title="Python syntax error",
        severity=ERROR,
        check=find_syntax_error,
        why="Python cannot compile the file, so the job fails when it starts the script.",
        example="""\
 --- train.py
-if True print("yes")    # <- here
+if True:
+    print("yes")
""",
    ),
)
