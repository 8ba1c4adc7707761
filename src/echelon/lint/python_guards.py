"""Finds the conditions on ranks under which a line of a Python script is reached.

A condition can be stored in a flag, an attribute or an argument, or be returned by a function.
These are followed. An expression that cannot be followed counts as a condition if its name suggests
one.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from echelon.lint.patterns import pattern
from echelon.lint.python_script import (
    Function,
    PythonScript,
    ancestors,
    enclosing_function,
    keyword,
    last_name,
    unparse,
)

_DEEPEST = 4
"""Maximum number of function calls and flags to follow."""
_RANK_WORDS = pattern(
    r"rank|is_main|is_master|is_primary|main_process|master|is_chief|is_zero|procid|zero_first|"
    r"\bgpu(?:_id|_idx)?\s*[!=]=\s*0",
    re.IGNORECASE,
)
_EXITS = frozenset({"exit", "_exit", "abort", "quit"})


def guards(script: PythonScript, node: ast.AST) -> list[str]:
    """Return the conditions on ranks under which the script reaches a node."""
    return _guards(script, node, frozenset())


def _guards(script: PythonScript, node: ast.AST, seen: frozenset[str]) -> list[str]:
    found = _own_guards(script, node, 0)
    function = enclosing_function(script, node)
    if found or function is None or function.name in seen or len(seen) >= _DEEPEST:
        return found
    callers = [call for call in script.calls(function.name) if call is not node]
    if not callers:
        return []
    outer = [_guards(script, call, seen | {function.name}) for call in callers]
    return outer[0] if all(outer) and not are_alternatives(outer) else []


def are_alternatives(guarded: Iterable[list[str]]) -> bool:
    """Tell whether places are in both branches of a condition, so every rank reaches one."""
    conditions = frozenset(condition for conditions in guarded for condition in conditions)
    return has_alternative(conditions, conditions)


def has_alternative(tests: Collection[str], conditions: frozenset[str]) -> bool:
    """Tell whether the opposite of one of some tests is among the conditions."""
    negated = {condition[len("not (") : -1] for condition in conditions if condition[:5] == "not ("}
    opposites = {test[len("not (") : -1] for test in tests if test[:5] == "not ("}
    return bool(negated & set(tests) or opposites & conditions)


def is_called(script: PythonScript, node: ast.AST) -> bool:
    """Tell whether a node is at module level or in a function that the script calls.

    In a function, a call of its own name is for another object, as in `self.part.save()`.
    """
    function = enclosing_function(script, node)
    return function is None or any(
        function not in ancestors(script, call) for call in script.calls(function.name)
    )


def _own_guards(script: PythonScript, node: ast.AST, depth: int) -> list[str]:
    """Return the conditions inside the enclosing function of a node."""
    found, below = list[str](), node
    for parent in ancestors(script, node):
        found += _around(script, parent, below, depth)
        found += _before(script, parent, below, depth)
        if isinstance(parent, Function):
            found += [_helper(script, decorator) for decorator in parent.decorator_list]
            break
        below = parent
    return [condition for condition in found if condition]


def _around(script: PythonScript, parent: ast.AST, below: ast.AST, depth: int) -> Iterator[str]:
    """Yield the conditions of a statement or expression that encloses `below`."""
    if isinstance(parent, ast.If | ast.IfExp | ast.While) and parent.test is not below:
        condition = _about_rank(script, parent.test, depth)
        otherwise = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
        yield f"not ({condition})" if condition and below in otherwise else condition
    elif isinstance(parent, ast.BoolOp):
        found = [_about_rank(script, v, depth) for v in parent.values if v is not below]
        turned = isinstance(parent.op, ast.Or)
        yield from (f"not ({part})" if turned else part for part in found if part)
    elif isinstance(parent, ast.Match) and isinstance(below, ast.match_case):
        condition = _about_rank(script, parent.subject, depth)
        yield f"{condition} == {unparse(below.pattern)}" if condition else ""
        yield _about_rank(script, below.guard, depth) if below.guard else ""
    elif isinstance(parent, ast.With | ast.AsyncWith):
        used = (item.context_expr for item in parent.items)
        # Arguments, such as disable=rank != 0, are no conditions of the block.
        yield from (_helper(script, one.func if isinstance(one, ast.Call) else one) for one in used)
    elif isinstance(parent, ast.Call) and isinstance(below, ast.Lambda):
        yield _helper(script, parent.func)


def _helper(script: PythonScript, used: ast.expr) -> str:
    """Return a decorator, context manager or function that checks the rank; else empty."""
    text = unparse(used)
    name = last_name(used.func if isinstance(used, ast.Call) else used)
    return text if _RANK_WORDS.search(text) or (name and _heeds_rank(script, name)) else ""


def _before(script: PythonScript, parent: ast.AST, below: ast.AST, depth: int) -> Iterator[str]:
    """Yield earlier exits for some ranks: `if rank != 0: continue`, or an assert."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or below not in block:
            continue
        for other in block[: block.index(below)]:
            if isinstance(other, ast.Assert):
                yield _about_rank(script, other.test, depth)
            elif isinstance(other, ast.If) and (_leaves(other.body) or _leaves(other.orelse)):
                condition = _about_rank(script, other.test, depth)
                yield f"not ({condition})" if condition and _leaves(other.body) else condition


def _leaves(block: list[ast.stmt]) -> bool:
    """Tell whether a block ends with a jump, so the code after it does not run."""
    last = block[-1] if block else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return last_name(last.value.func) in _EXITS
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


# --- conditions -----------------------------------------------------------------------------


def _about_rank(script: PythonScript, test: ast.expr, depth: int) -> str:
    """Return a condition on ranks, with flags replaced by their values; else empty."""
    if depth > _DEEPEST:
        return ""
    if isinstance(test, ast.NamedExpr):
        return _about_rank(script, test.value, depth)
    if isinstance(test, ast.BoolOp) or (
        isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    ):
        return _about_rank_composed(script, test, depth)
    if isinstance(test, ast.Compare):
        return _about_rank_compared(script, test, depth)
    return _about_rank_plain(script, test, depth)


def _about_rank_plain(script: PythonScript, test: ast.expr, depth: int) -> str:
    text = unparse(test)
    if _RANK_WORDS.search(text):
        return text
    if isinstance(test, ast.Call):
        return _answer(script, last_name(test.func), depth)
    return _flag(script, test, depth) if isinstance(test, ast.Name | ast.Attribute) else ""


def _about_rank_composed(script: PythonScript, test: ast.BoolOp | ast.UnaryOp, depth: int) -> str:
    if isinstance(test, ast.UnaryOp):
        inner = _about_rank(script, test.operand, depth)
        if inner == unparse(test.operand):
            return unparse(test)
        return f"not ({inner})" if inner else ""
    parts = [_about_rank(script, value, depth) for value in test.values]
    joint = " and " if isinstance(test.op, ast.And) else " or "
    shown = (part or unparse(value) for part, value in zip(parts, test.values, strict=True))
    return joint.join(shown) if any(parts) else ""


def _about_rank_compared(script: PythonScript, test: ast.Compare, depth: int) -> str:
    sides = [test.left, *test.comparators]
    text = unparse(test)
    # A loss is also compared with `<`, and the call that computes it may take a rank.
    ordered = isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    looked_at = " ".join(map(_maker, sides)) if ordered else text
    if _RANK_WORDS.search(looked_at):
        return text
    if not any(isinstance(side, ast.Constant) for side in sides):
        return ""
    for side in sides:
        if not isinstance(side, ast.Name | ast.Attribute):
            continue
        for maker in map(_maker, _sources(script, side)):
            if _RANK_WORDS.search(maker):
                return text.replace(unparse(side), maker)
        if isinstance(test.ops[0], ast.Is | ast.IsNot) and (flag := _flag(script, side, depth)):
            return flag
    return ""


def _maker(value: ast.expr) -> str:
    """Return the source of a value: for a call its function, except for casts like int(…)."""
    casts = ("int", "str", "bool", "get", "getenv", "getattr")
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Call):
        value = value.value
    if isinstance(value, ast.Call) and last_name(value.func) not in casts:
        return unparse(value.func)
    return unparse(value)


def _flag(script: PythonScript, name: ast.Name | ast.Attribute, depth: int) -> str:
    """Return the condition of a flag: its value, or the condition under which it is set."""
    if depth >= _DEEPEST:
        return ""
    for value in _sources(script, name):
        found = "" if isinstance(value, ast.Call) else _about_rank(script, value, depth + 1)
        if isinstance(value, ast.IfExp):
            found = _about_rank(script, value.test, depth + 1)
        elif isinstance(value, ast.Call):
            maker = _maker(value)
            found = maker if _RANK_WORDS.search(maker) else ""
            found = found or _answer(script, last_name(value.func), depth + 1)
        empty = isinstance(value, ast.Constant) and not value.value
        if not found and not empty:
            found = next(iter(_own_guards(script, value, depth + 1)), "")
        if found:
            return found
    return _answer(script, name.attr, depth + 1) if isinstance(name, ast.Attribute) else ""


def _sources(script: PythonScript, name: ast.Name | ast.Attribute) -> list[ast.expr]:
    """Return all values that are assigned to a name or passed as it, in the whole script."""
    if isinstance(name, ast.Name):
        return [*script.assigned.get(name.id, []), *handed_over(script, name)]
    return script.passed.get(name.attr, [])


def handed_over(script: PythonScript, name: ast.Name) -> list[ast.expr]:
    """Return the arguments that callers pass for a parameter of the enclosing function."""
    function = enclosing_function(script, name)
    if function is None:
        return []
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    place = names.index(name.id) if name.id in names else None
    found = [keyword(call, name.id, place) for call in script.calls(function.name)]
    return [value for value in found if value is not None]


def _answer(script: PythonScript, name: str, depth: int) -> str:
    """Return the condition that a function of the script returns; empty if there is none."""
    if not name or depth >= _DEEPEST:
        return ""
    for function in script.functions.get(name, []):
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                found = _about_rank(script, node.value, depth + 1)
                found = found or next(iter(_own_guards(script, node, depth + 1)), "")
                if found:
                    return found
    return name if name not in script.functions and _heeds_rank(script, name) else ""


def _heeds_rank(script: PythonScript, name: str) -> bool:
    """Tell whether a function of the script or of an imported module checks the rank."""
    if any(_RANK_WORDS.search(unparse(function)) for function in script.functions.get(name, [])):
        return True
    beside = re.search(rf"\bdef {re.escape(name)}\b.*(\n([ \t].*)?){{0,20}}", script.neighbours)
    return beside is not None and bool(_RANK_WORDS.search(beside[0]))
