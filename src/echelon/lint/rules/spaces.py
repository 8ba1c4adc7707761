"""E209: assignments that are commands because of a space."""

import re
from collections.abc import Iterator

from echelon.lint.edits import Edit, replace_group
from echelon.lint.expanding import NAME
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, Hit, Located, rule
from echelon.lint.script import Script

_EXPORTED = pattern(
    r"\s*(export|declare|local|readonly) +([A-Za-z_]\w*)"
    r"(?: +=(?!=) *([^#]*)|= +([^\s#;&|=<>]+)\s*(?:#.*)?$)"
)
_ONE_WORD = pattern(
    r"\s*(?:(?:export|declare|local|readonly) +)?[A-Za-z_]\w*( {0,99}= {0,99})"
    r"(?:\"[^\"`$\\]*\"|'[^']*'|\$\([^()]*\)|[^\s;&|#<>()\"'`=\\]+)\s*(?:#.*)?$"
)
"""An assignment of one word, with blanks."""
_LONGEST = 2000
"""Longer lines were not written by a person."""


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
                fix = f"{match[1]} {match[2]}={(match[3] or match[4] or '').strip()}"
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
