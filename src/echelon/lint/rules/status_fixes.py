"""The change after which the status of a script shows a failure: the fixes of E507."""

import re

from echelon.lint.bash import Command, Shell
from echelon.lint.exit_status import Ending, endings
from echelon.lint.patterns import pattern

ERREXIT = "set -e  # near the top of the script"
_LAST = "end the script with: exit ${code:-0}"
IN_LOOP = f"… || code=1  # for each program in a loop; {_LAST}"
_EXITS = "… || exit 1"
_RETURNS = "… || return 1  # `set -e` has no effect in a function whose status is tested"
_WORKS_WITH_ERREXIT = pattern(r"activate|(?:conda|mamba)\.sh")
"""Files of environments, which may be sourced after `set -e`."""
_SUCCEEDS = pattern(r"\n[ \t]*exit(?: 0)?\s*\Z")


def fix_of(batch: Shell, command: Command) -> str:
    """Return what shows the failure of a command.

    A loop continues after a failure, because its rounds seldom depend on each other. So do calls
    of the same function.
    """
    calls = _calls(batch, command.function)
    if any(end.handled for end in _ends_of(batch, calls)):
        return _RETURNS
    several = len(calls) > 1 or any(call.repeated for call in calls)
    if several and _shows(_counting(batch, calls[0]), calls[0], calls[0].line):
        return f"… || return 1\n{command.function} … || code=1  # for each call; {_LAST}"
    if command.repeated and _shows(_counting(batch, command), command, command.line):
        return IN_LOOP
    if _shows(f"set -e\n{batch.text}", command, command.line + 1):
        return errexit_fix(batch, command)
    return _EXITS


def errexit_fix(batch: Shell, command: Command) -> str:
    """Return `set -e` with its place: sourced files may end the script if they come after it."""
    sourced = [
        c.line
        for c in batch.commands
        if c.name in ("source", ".") and not c.function and not _WORKS_WITH_ERREXIT.search(c.text)
    ]
    last = max((line for line in sourced if line < command.line), default=0)
    return f"set -e  # below line {last}, which sources a file" if last else ERREXIT


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
    lines = _SUCCEEDS.sub("\n", batch.text).split("\n")
    place = min(command.line, len(lines)) - 1
    while lines[place].endswith("\\") and place + 1 < len(lines):
        place += 1
    lines[place] = re.sub(r"(?:\s#.*)?$", " || code=1", lines[place], count=1)
    return "\n".join([*lines, "exit ${code:-0}"])


def _shows(text: str, command: Command, line: int) -> bool:
    """Tell whether a script fails if a command fails."""
    ends = endings(text, line, command.name, once=command.repeated)
    return bool(ends) and not any(end.succeeds for end in ends or ())
