"""The change after which the status of a script shows a failure: the fixes of E507."""

import re

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import Ending, endings
from echelon.lint.patterns import pattern
from echelon.lint.reading import parse_bash
from echelon.lint.rules.last_commands import COPIES
from echelon.lint.rules.programs import QUIET, runs_script, starts, training_functions

_TOP = "near the top of the script"
ERREXIT = f"set -e  # {_TOP}"
_LAST = "end the script with: exit ${code:-0}"
IN_LOOP = f"… || code=1  # for each program in a loop; {_LAST}"
_EXITS = "… || exit 1"
_RETURNS = "… || return 1  # `set -e` has no effect in a function whose status is tested"
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


def fix_of(batch: Shell, command: Command) -> str:
    """Return what shows the failure of a command.

    A loop continues after a failure, because its rounds seldom depend on each other. So do calls
    of the same function, and several runs of the same program.
    """
    calls = _calls(batch, command.function)
    if any(end.handled for end in _ends_of(batch, calls)):
        return _RETURNS
    several = len(calls) > 1 or any(call.repeated for call in calls)
    if several and _shows(_counting(batch, calls[0]), calls[0], calls[0].line):
        return f"… || return 1\n{command.function} … || code=1  # for each call; {_LAST}"
    counts = _counts(batch, command)
    if counts and _shows(_counting(batch, command), command, command.line):
        return counts
    if _shows(f"set -e\n{batch.text}", command, command.line + 1):
        return errexit_fix(batch, command)
    return _EXITS


def errexit_fix(batch: Shell, command: Command, *, of: str = "") -> str:
    """Return `set -e` with its place, so that it ends no script that works today.

    Args:
        batch: the script.
        command: the command whose failure it shows.
        of: the name of the script, if it is not the one with the finding.
    """
    functions = training_functions(batch)
    programs = [c for c in batch.commands if _is_program(c, command) or c.name in functions]
    known = {id(c) for c in programs}
    fragile = [c for c in batch.commands if _is_fragile(c) and id(c) not in known]
    at_top = f"set -e  # near the top of {of}, too" if of else ERREXIT
    if not fragile:
        return at_top
    first = min((c.line for c in programs if not c.function), default=0)
    first = _statement(batch, first)
    last = max(fragile, key=lambda c: c.line)
    if last.line < first:
        reason = f"if {last.name} (line {last.line}) fails, the job can still run"
        return f"set -e  # above line {first}{f' of {of}, too' if of else ''}: {reason}"
    ended = f"set -o pipefail\n{_behind(batch, command, _EXITS[2:])}"
    if not _shows(ended, command, command.line + 1):
        return at_top
    return f"{_EXITS}  # for line {command.line} of {of}, too" if of else _EXITS


def pipefail_fix(batch: Shell, command: Command) -> str:
    """Return the options of `set` with which the job has the status of a pipe."""
    suffices = _shows(f"set -o pipefail\n{batch.text}", command, command.line + 1)
    if suffices or "errexit" in batch.settings or not _is_followed(batch, command):
        return f"set -o pipefail  # {_TOP}"
    fix = _counts(batch, command) or errexit_fix(batch, command)
    if fix.startswith("set -e"):
        return fix.replace("set -e", "set -eo pipefail", 1)
    return f"set -o pipefail  # {_TOP}\n{fix}"


def _is_followed(batch: Shell, command: Command) -> bool:
    later = (c for c in batch.commands if c.line > command.line and not c.piped)
    return command.repeated or any(later)


def _counts(batch: Shell, command: Command) -> str:
    """Return the fix for programs that run several times."""
    if command.repeated:
        return IN_LOOP
    script = script_of(command)
    runs = [c for c in batch.commands if c.name == command.name and script_of(c) == script]
    if script and len(runs) >= _SEVERAL and len({c.text for c in runs}) == len(runs):
        return f"… || code=1  # for each run of {script}; {_LAST}"
    return ""


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
    """Tell whether the script looks at the failure of a function, and succeeds nevertheless."""
    ends = _ends_of(batch, _calls(batch, function))
    return bool(ends) and all(end.handled and end.succeeds for end in ends)


def _calls(batch: Shell, function: str) -> list[Command]:
    return [c for c in batch.commands if function and c.name == function]


def _ends_of(batch: Shell, calls: list[Command]) -> tuple[Ending, ...]:
    """Return the ends of the script if a function fails."""
    return (endings(batch.text, calls[0].line, calls[0].name) or ()) if calls else ()


def _counting(batch: Shell, command: Command) -> str:
    """Return the script with the fix for loops."""
    text = _SUCCEEDS.sub("\n", _behind(batch, command, "|| code=1"))
    return f"{text}\nexit ${{code:-0}}"


def _behind(batch: Shell, command: Command, addition: str) -> str:
    """Return the script with an addition to a command."""
    lines = batch.text.split("\n")
    place = min(command.line, len(lines)) - 1
    while lines[place].endswith("\\") and place + 1 < len(lines):
        place += 1
    bare = re.sub(r"\s#.*$", "", lines[place]).rstrip().removesuffix(";")
    lines[place] = f"{bare} {addition}"
    return "\n".join(lines)


def _shows(text: str, command: Command, line: int) -> bool:
    """Tell whether a script fails if a command fails."""
    ends = endings(text, line, command.name, once=command.repeated)
    return bool(ends) and not any(end.succeeds for end in ends or ())
