"""The options that a Python script accepts: those of its argparse parser, if readable. Pure.

Anything that could add an option, such as a function that gets the parser, makes them unknown.
"""

import ast
from functools import lru_cache

from echelon.core.frozen import frozen
from echelon.lint.patterns import pattern
from echelon.lint.python_script import (
    PythonScript,
    constant,
    enclosing_function,
    has_spread,
    is_conditional,
    keyword,
    last_name,
    unparse,
)

_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_HARMLESS = _GROUPS | {
    "add_argument",
    "parse_args",
    "print_help",
    "print_usage",
    "error",
    "exit",
    "format_help",
}
_UNREADABLE = pattern(
    r"parse_known|add_subparsers|fromfile_prefix|prefix_chars|parents\s*=(?!\s*True)|REMAINDER|"
    r"PARSER|allow_abbrev|sys\.argv(?!\[1:\]\)|\[0\])|set_defaults|parse_intermixed|hydra\.main|"
    r"absl|\bfire\b|\bclick\b|tyro|conflict_handler|_actions|argcomplete|jsonargparse|configargparse"
)
"""Text of scripts whose arguments do not depend on one plain parser alone."""


@frozen
class Option:
    """An argument of the parser."""

    names: tuple[str, ...]
    required: bool
    """The command line has to contain it."""


@frozen
class Parser:
    """What a script accepts on its command line."""

    options: tuple[Option, ...]
    """Those with a name."""

    def find(self, name: str) -> list[Option]:
        """Return the options with a name, or all that it abbreviates."""
        exact = [option for option in self.options if name in option.names]
        if exact:
            return exact
        if not name.startswith("--"):  # the value may follow at once, as in -n4
            return [option for option in self.options if name[:2] in option.names]
        return [o for o in self.options if any(n.startswith(name) for n in o.names)]


@lru_cache(maxsize=32)
def read_parser(script: PythonScript) -> Parser | None:
    """Return the parser of a script; None if there is none, or if it may have other options."""
    made = script.calls("ArgumentParser")
    if len(made) != 1 or made[0].args or has_spread(made[0]) or _UNREADABLE.search(script.text):
        return None
    names = _names_of(script, made[0])
    if not names or not _is_plain(script, names):
        return None
    adding = [c for c in script.calls("add_argument") if isinstance(c.func, ast.Attribute)]
    if any(is_conditional(script, call) for call in (*adding, *script.calls("parse_args"))):
        return None
    read = [_read_option(call) for call in adding]
    options = [option for option in read if option is not None]
    if len(options) < len(read) or not options:
        return None
    return Parser(options=tuple(o for o in options if o.names[0].startswith("-")))


def _names_of(script: PythonScript, made: ast.Call) -> set[str]:
    """Return the names of the parser and its groups; empty if one has no plain name."""
    found, waiting = set[str](), [made]
    while waiting:
        call = waiting.pop()
        parent = script.parents.get(call)
        if isinstance(parent, ast.Return):
            waiting += _callers(script, parent)
            continue
        if isinstance(parent, ast.Attribute) and parent.attr in ("parse_args", "add_argument"):
            continue
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        if not isinstance(target, ast.Name) or target.id in found:
            return set()
        found.add(target.id)
        if len(script.assigned.get(target.id, [])) != 1:
            return set()
        waiting += [
            group
            for group in script.calls(*_GROUPS)
            if isinstance(group.func, ast.Attribute) and unparse(group.func.value) == target.id
        ]
        for node in script.nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                waiting += _callers(script, node) if unparse(node.value) == target.id else []
    return found


def _callers(script: PythonScript, node: ast.Return) -> list[ast.Call]:
    """Return the calls of the function that returns here."""
    function = enclosing_function(script, node)
    return script.calls(function.name) if function else []


def _is_plain(script: PythonScript, names: set[str]) -> bool:
    """Tell whether the script uses the parser only in ways that are understood here."""
    for node in script.nodes:
        if not isinstance(node, ast.Name) or node.id not in names:
            continue
        parent = script.parents.get(node)
        if isinstance(node.ctx, ast.Store) or isinstance(parent, ast.Return):
            continue
        if not isinstance(parent, ast.Attribute) or parent.attr not in _HARMLESS:
            return False
    parsing = [call for call in script.calls("parse_args") if isinstance(call.func, ast.Attribute)]
    return bool(parsing) and all(_is_own(script, call, names) for call in parsing)


def _is_own(script: PythonScript, call: ast.Call, names: set[str]) -> bool:
    """Tell whether a call parses the command line with the script's own parser."""
    assert isinstance(call.func, ast.Attribute)
    made = call.func.value
    own = isinstance(made, ast.Call) and (
        last_name(made.func) == "ArgumentParser" or last_name(made.func) in script.functions
    )
    if not own and unparse(made) not in names:
        return False
    given = [unparse(argument) for argument in call.args]
    return not call.keywords and given in ([], ["None"], ["sys.argv[1:]"])


def _read_option(call: ast.Call) -> Option | None:
    names = [constant(argument) for argument in call.args]
    if has_spread(call) or not names or not all(isinstance(name, str) for name in names):
        return None
    action = keyword(call, "action")
    texts = [str(name) for name in names]
    if action is not None and not isinstance(constant(action), str):
        # BooleanOptionalAction also has --no-…
        texts += [f"--no-{text.removeprefix('--')}" for text in texts if text.startswith("--")]
    required = constant(keyword(call, "required")) is True
    return Option(names=tuple(texts), required=required)
