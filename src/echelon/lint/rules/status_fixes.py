"""The change after which the status of a script shows a failure: the fixes of E507."""

import re
from collections.abc import Iterator
from dataclasses import replace

from tree_sitter import Node

from echelon.core.frozen import frozen
from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import Ending, endings
from echelon.lint.patterns import pattern
from echelon.lint.reading import parse_bash
from echelon.lint.rules.last_commands import COPIES
from echelon.lint.rules.programs import QUIET, runs_script, starts, training_functions

_TOP = "near the top of the script"
ERREXIT = f"set -e  # {_TOP}"
_PIPEFAIL = f"set -o pipefail  # {_TOP}"
_EXITS = "… || exit 1"
_RETURN = "|| return 1"
_RETURNS = f"… {_RETURN}"
_TESTED = f"{_RETURNS}  # `set -e` has no effect in a function whose status is tested"
WORDS = "test the status of this command, and let the script exit with 1 if it failed"
_RETRIED = "test after the loop whether a try has succeeded, and exit with 1 if none has"
_FLAGS = ("failed", "any_failed")
_RETRIES = pattern(r"&&\s*(break|exit|return)\b")
_LEAVES = pattern(r"&&[^|]*\b(?:break|exit|return)\b")
_CHAINS = frozenset({"redirected_statement", "pipeline", "list"})
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_SUCCEEDS = pattern(r"\n[ \t]*exit(?: 0)?\s*\Z")
_SOUND = (
    (QUIET - {"kill"})
    | COPIES
    | {
        *("cd", "pwd", "touch", "exit", "return", "wait", "set", "unset", "export", "trap", "exec"),
        *("whoami", "id", "uname", "uptime", "env", "printenv", "lscpu", "nproc", "free", "df"),
        *("cat", "head", "tail", "sort", "uniq", "wc", "tee", "cut", "tr", "sed", "awk", "seq"),
        *("basename", "dirname", "realpath", "scontrol", "shuf", "deactivate", "umask", "declare"),
        *("break", "continue", "readonly", "local", "typeset", "sbatch", "chmod"),
    }
)
"""Commands that seldom fail, or whose failure matters."""
_SOUND_TEXT = pattern(
    r"mkdir (?:-\w*p|--parents)|rm (?:-\w*f|--force)|ln -\w*f|conda deactivate|"
    r"(?:source|\.) \S*(?:activate|(?:conda|mamba)\.sh)"
)
_ASKS = pattern(r"\S+ (?:-c|-V|--version|-m pip)\b")
"""Calls of Python that print what there is."""
_SEVERAL = 3
"""How many runs of the same program are as independent as the rounds of a loop."""


@frozen
class _Change:
    """A change of a script, and what lint says about it."""

    shown: str
    setting: str = ""
    """A new line with options."""
    above: int = 1
    """The line above which it is."""
    additions: tuple[tuple[Command, str], ...] = ()
    """What follows commands."""
    outside: bool = False
    """The additions are behind the parentheses around the commands."""
    last: str = ""
    """The new last line."""

    def applied(self, text: str) -> str:
        """Return the changed script; empty if the place is not clear."""
        for command, addition in self.additions:
            text = _added(text, command, addition, outside=self.outside) if text else ""
        if text and self.last:
            text = _SUCCEEDS.sub("\n", text) + f"\n{self.last}"
        lines = text.split("\n")
        added = [self.setting] if text and self.setting else []
        return "\n".join([*lines[: self.above - 1], *added, *lines[self.above - 1 :]])

    def line(self, command: Command) -> int:
        return command.line + bool(self.setting and self.above <= command.line)


def fix_of(batch: Shell, command: Command, *, piped: bool = False) -> str:
    """Return what shows the failure of a command: the first change after which bash shows it.

    A loop continues after a failure, because its rounds seldom depend on each other. So do calls
    of the same function, and several runs of the same program.

    Args:
        batch: the script.
        command: the command.
        piped: it is in a pipe, so that its failure needs `pipefail`, too.
    """
    if retried := _fix_of_tries(batch, command, piped=piped):
        return f"{_PIPEFAIL}\n{retried}" if piped else retried
    if not piped and is_tolerated(batch, command.function):
        return _TESTED
    calls = [call for call in _calls(batch, command.function) if not _is_tested(batch, call)]
    for change in _changes(batch, command):
        tried = _with_pipefail(change) if piped else change
        returns = (command, _RETURN) in change.additions
        if all(_shows(batch, tried, one) for one in (command, *(calls if returns else ()))):
            return tried.shown
    return f"{_PIPEFAIL}\n{WORDS}" if piped else WORDS


def _changes(batch: Shell, command: Command) -> Iterator[_Change]:
    """Yield what may show a failure, the best first."""
    flag = _flag(batch)
    last, ending = f"exit ${{{flag}:-0}}", f"end the script with: exit ${{{flag}:-0}}"
    calls = _calls(batch, command.function)
    tested = [call for call in calls if _is_tested(batch, call)]
    returns = ((command, _RETURN),)
    if tested:
        yield _Change(shown=_TESTED, additions=returns)
    if tested or len(calls) > 1 or any(call.repeated for call in calls):
        rest = [call for call in calls if call not in tested]
        which = "each call that nothing tests" if tested else "each call"
        yield _Change(
            shown=f"{_RETURNS}\n{command.function} … || {flag}=1  # for {which}; {ending}",
            additions=(*returns, *((call, f"|| {flag}=1") for call in rest)),
            last=last,
        )
    if runs := _counted(batch, command):
        counts = ((command, f"|| {flag}=1"),)
        shown = f"… || {flag}=1  # for {runs}; {ending}"
        if not _is_in_parentheses(batch, command):
            yield _Change(shown=shown, additions=counts, last=last)
        shown = f"(…) || {flag}=1  # behind the parentheses; {ending}"
        yield _Change(shown=shown, additions=counts, outside=True, last=last)
    if place := _errexit(batch, command):
        yield place
        yield replace(
            place,
            shown=place.shown.replace("set -e", "set -eo pipefail", 1),
            setting="set -eo pipefail",
        )
    yield _Change(shown=_EXITS, additions=((command, "|| exit 1"),))
    yield _Change(shown=ERREXIT, setting="set -e")


def _with_pipefail(change: _Change) -> _Change:
    if change.setting:
        shown = re.sub(r"^set -e\b", "set -eo pipefail", change.shown)
        return replace(change, shown=shown, setting="set -eo pipefail")
    return replace(change, shown=f"{_PIPEFAIL}\n{change.shown}", setting="set -o pipefail")


def _fix_of_tries(batch: Shell, command: Command, *, piped: bool) -> str:
    """Return the fix for a loop that runs a command until it succeeds; empty for others."""
    chain = _chain(batch.text, command) if command.repeated else None
    text = _text(batch.text, chain) if chain else ""
    if chain is None or not _LEAVES.search(text):
        return ""
    loops = [node for node in _above(chain) if node.type in _LOOPS]
    found = _RETRIES.search(text)
    if found is None or len(loops) != 1 or (command.function and found[1] == "return"):
        return _RETRIED
    end = loops[0].end_byte
    flag = "succeeded"
    test = f'[ "${{{flag}:-0}}" = 1 ] || exit 1' if found[1] == "break" else "exit 1"
    source = batch.text.encode(errors="replace")
    own = text.replace(found[0], f"&& {flag}=1 && break") if found[1] == "break" else text
    changed = b"".join(
        (
            source[: chain.start_byte],
            own.encode(errors="replace"),
            source[chain.end_byte : end],
            f"\n{test}".encode(),
            source[end:],
        )
    ).decode(errors="replace")
    if piped:
        changed = f"set -o pipefail\n{changed}"
    ends = endings(changed, command.line + piped, command.name)
    if not ends or any(one.succeeds for one in ends):
        return _RETRIED
    first = f"… && {flag}=1 && break\n" if found[1] == "break" else ""
    return f"{first}{test}  # after the loop"


def ending_fix(batch: Shell, command: Command) -> str:
    """Return what ends the script if a command fails, although it is in a loop."""
    place = _errexit(batch, command)
    exits = _Change(shown=_EXITS, additions=((command, "|| exit 1"),))
    changes = [place, exits] if place else [exits]
    return next((one.shown for one in changes if _shows(batch, one, command)), WORDS)


def fix_of_other(batch: Shell, command: Command, *, of: str) -> str:
    """Return what ends a script that the job starts, also if lint cannot execute the script.

    Args:
        batch: the script.
        command: the command whose failure ends it.
        of: the name of the script.
    """
    change = _errexit(batch, command)
    ends = _ends_after(batch, change, command) if change else ()
    if change is None or any(end.succeeds for end in ends):
        return f"{_EXITS}  # for line {command.line} of {of}, too"
    return _elsewhere(change, of)


def _elsewhere(change: _Change, of: str) -> str:
    """Return a fix with `set -e` for a script that is not the one with the finding."""
    if change.above == 1:
        return f"{change.setting}  # near the top of {of}, too"
    place = f"above line {change.above}"
    return change.shown.replace(place, f"{place} of {of}, too", 1)


def fix_of_calls(batch: Shell, calls: list[Command], *, of: str) -> str:
    """Return what shows the failure of a script that another one starts.

    Args:
        batch: the script that starts it.
        calls: the commands that start it.
        of: what to call the script that starts it.
    """
    flag = _flag(batch)
    counts = _Change(
        shown=f"… || {flag}=1  # for each call in {of}; end it with: exit ${{{flag}:-0}}",
        additions=tuple((call, f"|| {flag}=1") for call in calls),
        last=f"exit ${{{flag}:-0}}",
    )
    several = len(calls) > 1 or calls[0].repeated
    if several and all(_shows(batch, counts, call) for call in calls):
        return counts.shown
    place = _errexit(batch, calls[0])
    if place and all(_shows(batch, place, call) for call in calls):
        return _elsewhere(place, of)
    exits = _Change(shown="", additions=tuple((call, "|| exit 1") for call in calls))
    lines = ", ".join(str(call.line) for call in calls)
    if all(_shows(batch, exits, call) for call in calls):
        return f"{_EXITS}  # for line {lines} of {of}, too"
    return f"test the status of line {lines} of {of}, too"


def _errexit(batch: Shell, command: Command) -> _Change | None:
    """Return `set -e` with its place, so that it ends no script that works today."""
    functions = training_functions(batch)
    programs = [c for c in batch.commands if _is_program(c, command) or c.name in functions]
    known = {id(c) for c in programs}
    fragile = [c for c in batch.commands if _is_fragile(c) and id(c) not in known]
    if not fragile:
        return _Change(shown=ERREXIT, setting="set -e")
    first = min((c.line for c in programs if not c.function), default=0)
    first = _statement(batch, first)
    last = max(fragile, key=lambda c: c.line)
    if last.line >= first:
        return None
    reason = f"if {last.name} (line {last.line}) fails, the job can still run"
    shown = f"set -e  # above line {first}: {reason}"
    return _Change(shown=shown, setting="set -e", above=first)


def pipefail_fix(batch: Shell, command: Command) -> str:
    """Return the options of `set` with which the job has the status of a pipe."""
    alone = _Change(shown=_PIPEFAIL, setting="set -o pipefail")
    ends = _ends_after(batch, alone, command)
    if not ends:
        followed = "errexit" not in batch.settings and _is_followed(batch, command)
        place = _errexit(batch, command) if followed else None
        return _with_pipefail(place).shown if place else _PIPEFAIL
    if not any(end.succeeds for end in ends):
        return _PIPEFAIL
    if all(end.handled for end in ends) and not command.function:
        return f"{_PIPEFAIL}\nexit 1  # where the script handles the failure"
    return fix_of(batch, command, piped=True)


def _is_followed(batch: Shell, command: Command) -> bool:
    later = (c for c in batch.commands if c.line > command.line and not c.piped)
    return command.repeated or any(later)


def _counted(batch: Shell, command: Command) -> str:
    """Return how a program runs several times; empty if it does not."""
    if command.repeated:
        return "each program in a loop"
    script = script_of(command)
    runs = [c for c in batch.commands if c.name == command.name and script_of(c) == script]
    several = len(runs) >= _SEVERAL and len({c.text for c in runs}) == len(runs)
    return f"each run of {script}" if script and several else ""


def _flag(batch: Shell) -> str:
    """Return the name of a variable that the script does not use."""
    used = batch.names_read | {assignment.name for assignment in batch.assignments}
    return next((name for name in _FLAGS if name not in used), _FLAGS[-1])


def script_of(command: Command) -> str:
    """Return the script or module that a command runs."""
    words = [word.text for word in command.words]
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    named = (word for word in words if word.endswith((".py", ".sh", ".R", ".jl")))
    return next(iter([*named, *module]), "")


def _is_program(command: Command, reported: Command) -> bool:
    same = command.name == reported.name
    return (starts(command) or runs_script(command) or same) and not _ASKS.match(command.text)


def _is_fragile(command: Command) -> bool:
    """Tell whether `set -e` may end the script at a command that fails without harm."""
    sound = command.name in _SOUND or _SOUND_TEXT.match(command.text)
    return command.unchecked and not command.background and not sound


def _statement(batch: Shell, line: int) -> int:
    """Return the first line of the loop, branch or command that contains a line."""
    tree = parse_bash(batch.text)
    rows = (
        (tree.source.line(node.start_byte), tree.source.line(node.end_byte))
        for node in tree.root.children
        if node.type != "comment"
    )
    return next((first for first, last in rows if first <= line <= last), line)


def is_tolerated(batch: Shell, function: str) -> bool:
    """Tell whether the script looks at all failures of a function, and succeeds nevertheless."""
    calls = [_ends(batch, call) for call in _calls(batch, function)]
    return bool(calls) and all(
        ends and all(end.handled and end.succeeds for end in ends) for ends in calls
    )


def _is_tested(batch: Shell, call: Command) -> bool:
    return any(end.handled for end in _ends(batch, call))


def _calls(batch: Shell, function: str) -> list[Command]:
    return [c for c in batch.commands if function and c.name == function]


def _ends(batch: Shell, command: Command) -> tuple[Ending, ...]:
    return endings(batch.text, command.line, command.name) or ()


def _ends_after(batch: Shell, change: _Change, command: Command) -> tuple[Ending, ...]:
    """Return the ends of a changed script if a command fails; empty if they are unclear."""
    text = change.applied(batch.text)
    return endings(text, change.line(command), command.name, once=command.repeated) or ()


def _shows(batch: Shell, change: _Change, command: Command) -> bool:
    """Tell whether a changed script fails if a command fails."""
    ends = _ends_after(batch, change, command)
    return bool(ends) and not any(end.succeeds for end in ends)


# --- places ---------------------------------------------------------------------------------


def _added(text: str, command: Command, addition: str, *, outside: bool) -> str:
    """Return a script with an addition to a command; empty if the place is not clear."""
    chain = _chain(text, command)
    if chain and outside:
        around = [node for node in _above(chain) if node.type == "subshell"]
        chain = _outermost(around[-1]) if around else None
    if chain is None:
        return ""
    source = text.encode(errors="replace")
    parts = source[: chain.end_byte], f" {addition}".encode(), source[chain.end_byte :]
    return b"".join(parts).decode(errors="replace")


def _is_in_parentheses(batch: Shell, command: Command) -> bool:
    chain = _chain(batch.text, command)
    return chain is not None and any(node.type == "subshell" for node in _above(chain))


def _chain(text: str, command: Command) -> Node | None:
    """Return the command with the pipe and the list that it is in; None if it is not found."""
    tree = parse_bash(text)
    found, waiting = None, [tree.root]
    while waiting and found is None:
        node = waiting.pop()
        first, last = tree.source.line(node.start_byte), tree.source.line(node.end_byte)
        if not first <= command.line <= last:
            continue
        if node.type == "command" and command.name in tree.source.text(node):
            found = node
        waiting += reversed(node.named_children)
    return _outermost(found) if found else None


def _outermost(node: Node) -> Node:
    while node.parent is not None and node.parent.type in _CHAINS:
        node = node.parent
    return node


def _above(node: Node) -> Iterator[Node]:
    while (parent := node.parent) is not None:
        yield parent
        node = parent


def _text(text: str, node: Node) -> str:
    return parse_bash(text).source.text(node)
