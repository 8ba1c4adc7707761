"""E208 and E209: command lines that bash splits in another place than they appear to."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.edits import Edit, replace_group
from echelon.lint.expanding import NAME
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, Hit, Located, rule
from echelon.lint.script import Script

_BLANK_BEHIND = pattern(r"^[^#]*\s\\[ \t]+$")
_EXPORTED = pattern(
    r"\s*(export|declare|local|readonly) +([A-Za-z_]\w*)(?: +=(?!=) *| *= +)([^\s#;&|=<>]+)\s*(#.*)?$"
)
_ONE_WORD = pattern(
    r"\s*(?:(?:export|declare|local|readonly) +)?[A-Za-z_]\w*( {0,99}= {0,99})"
    r"(?:\"[^\"`$\\]*\"|'[^']*'|\$\([^()]*\)|[^\s;&|#<>()\"'`=\\]+)\s*(?:#.*)?$"
)
"""An assignment of one word, with blanks."""
_LONGEST = 2000
"""Longer lines were not written by a person."""


@rule("E208", ERROR)
def broken_continuation(script: Script) -> Iterator[Hit]:
    r"""Broken line continuation.

    A backslash continues a command only if it is the last character of a line. A comment or an
    empty line ends the command. Bash then runs the next line, often an option, as a command.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         python train.py \
        -    # --lr 0.1 \
             --epochs 3
    """
    for shell in script.shells:
        lines = script.lines_of(shell.path)
        for command in shell.commands if not shell.suspect else ():
            number, reason, fix = _broken_line(lines, command)
            if number:
                yield Hit(
                    at=Place(shell.path, number),
                    what=f"{reason} ends this command. Bash runs line {command.line} as a separate "
                    f"command: '{command.words[0].text}: command not found'.",
                    fix=fix,
                )


def _broken_line(lines: list[str], command: Command) -> tuple[int, str, str]:
    """Return the line that a command should have continued, why it does not, and the fix."""
    number, first = command.line, command.words[0]
    own = lines[number - 1] if 1 < number <= len(lines) else ""
    if not own.lstrip().startswith(first.text or " ") or first.uses:
        return 0, "", ""
    above = number - 1
    while above > 1 and (not lines[above - 1].strip() or lines[above - 1].lstrip()[:1] == "#"):
        above -= 1
    before, option = lines[above - 1], re.match(r"\s*--?[A-Za-z]", own)
    if _BLANK_BEHIND.match(before) and above == number - 1:
        return above, "The space after the backslash", "remove everything after the backslash"
    if before.endswith("\\") and above < number - 1 and (option or own != own.lstrip()):
        return above, "The comment or empty line after it", "move it above the command"
    if option and before.strip() and not before.lstrip().startswith("#"):
        reason = "A missing backslash at the end of the line"
        return above, reason, f"{before.strip()} \\"
    return 0, "", ""


@rule("E209", ERROR)
def blanks_around_equals(script: Script) -> Iterator[Hit]:
    """Spaces around `=` in an assignment.

    Bash splits a line at spaces first. `NAME = value` runs the program NAME with two arguments and
    does not change the variable.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -EPOCHS = 3    # <- here
        +EPOCHS=3
         python train.py --epochs "$EPOCHS"
    """
    for command in script.commands:
        name, second = command.words[0].text, command.words[1:2]
        sign = second[0].text if second and not second[0].quoted else ""
        if NAME.fullmatch(name) and (sign == "=" or (name.isupper() and re.match("=[^=]", sign))):
            value = " ".join([sign[1:], *(word.text for word in command.words[2:])]).strip()
            yield _blanks(script, command, name, f"{name}={value}", f"{name}: command not found")
    for path in dict.fromkeys(shell.path for shell in script.shells):
        for number, line in enumerate(script.lines_of(path), start=1):
            if len(line) > _LONGEST or "=" not in line:
                continue
            if match := _EXPORTED.match(line):
                fix = f"{match[1]} {match[2]}={match[3].strip()}"
                yield _blanks(script, Place(path, number), match[2], fix, "not a valid identifier")


def _blanks(script: Script, at: Located, name: str, fix: str, said: str) -> Hit:
    return Hit(
        at=at,
        what=f"`{name}` is not assigned because of the space next to `=`: '{said}'.",
        fix=fix,
        edits=_joined(at.line, script.line_at(Place(at.path, at.line))),
    )


def _joined(number: int, line: str) -> tuple[Edit, ...]:
    """Return the edit that removes the blanks, if the value is one word."""
    found = _ONE_WORD.match(line)
    return (replace_group(number, found, "=", 1),) if found else ()
