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

_BLANK_BEHIND = pattern(r"^[^#]*\s\\[ \t]+(#.*)?$")
_BLANK_AT_END = pattern(r"(?<=[ \t]\\)([ \t]+)$")
_EXPORTED = pattern(r"\s*(export|declare|local|readonly) +([A-Za-z_]\w*) +=(?!=) *([^#]*)")
_EXPORTED_EMPTY = pattern(r"\s*(export|readonly) +([A-Za-z_]\w*)= +([^\s#;&|=<>]+)\s*(#.*)?$")
_OF_VALUE = pattern(r"\s*\$\{?([A-Za-z_]\w*)\}?\s*=(?!=)\s*(\S.*)")
"""An assignment that begins with the value of the variable, not with its name."""
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
    told: set[tuple[str, int]] = set()
    for shell in script.shells:
        lines = script.lines_of(shell.path)
        for line, text, _ in shell.comments:
            above = lines[line - 2] if 1 < line <= len(lines) else ""
            inside = above.endswith("\\") and not above.lstrip().startswith("#")
            after = next((one for one in lines[line:] if not one.lstrip().startswith("#")), "")
            if inside and text.endswith("\\") and after.strip():
                told.add((shell.path, line - 1))
                yield Hit(
                    at=Place(shell.path, line - 1),
                    what="The comment on the next line ends this command. Bash runs the lines "
                    "after the comment as a separate command.",
                    fix="move the comment above the command",
                )
        for command in shell.commands if not shell.suspect else ():
            begun = _broken_line(lines, command)
            if not begun or (shell.path, begun) in told:
                continue
            told.add((shell.path, begun))
            reason, fix = _why_it_ends(lines, begun)
            first = command.words[0].text
            yield Hit(
                at=Place(shell.path, begun),
                what=f"{reason} ends this command. Bash runs line {command.line} as a separate "
                "command" + (f": '{first}: command not found'." if first[0] == "-" else "."),
                fix=fix,
                edits=tuple(
                    replace_group(begun, match, "", 1)
                    for match in _BLANK_AT_END.finditer(lines[begun - 1])
                ),
            )


def _broken_line(lines: list[str], command: Command) -> int:
    """Return the line that a command should have continued; 0 if there is none."""
    number = command.line
    if not 1 < number <= len(lines) or command.words[0].uses:
        return 0
    own = lines[number - 1].lstrip()
    if not command.words[0].text or not own.startswith(command.words[0].text):
        return 0
    above = number - 1
    while above > 1 and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    before = lines[above - 1]
    if above < number - 1 and before.endswith("\\") and own != lines[number - 1]:
        return above
    if not re.match(r"--?[A-Za-z]", own):
        return number - 1 if _BLANK_BEHIND.search(lines[number - 2]) else 0
    while above > 1 and not lines[above - 1].strip():
        above -= 1
    return above if lines[above - 1].strip() else 0


def _why_it_ends(lines: list[str], number: int) -> tuple[str, str]:
    line, after = lines[number - 1], lines[number].strip()
    if line.endswith("\\") and after.startswith("#"):
        return "The comment on the next line", "move the comment above the command"
    if line.endswith("\\"):
        return "The empty line after it", "remove the empty line"
    if re.search(r"\\[ \t]+(#.*)?$", line):
        return "The space after the backslash", "remove everything after the backslash"
    return "A missing backslash at the end of the line", f"{line.strip()} \\"


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
        empty = [own.name for own in command.assignments if own.value.text == ""]
        if empty and len(command.words) == 1 and command.words[0].number is not None:
            yield _blanks(script, command, empty[-1], f"{empty[-1]}={name}", "command not found")
        line = script.line_at(command)
        if match := _OF_VALUE.match(line) if line.lstrip().startswith("$") else None:
            yield Hit(
                at=command,
                what=f"`{match[1]}` is not assigned because of the `$` before its name: 'command "
                "not found'.",
                fix=f"{match[1]}={match[2].strip()}",
            )
    for path in dict.fromkeys(shell.path for shell in script.shells):
        for number, line in enumerate(script.lines_of(path), start=1):
            if len(line) > _LONGEST or "=" not in line:
                continue
            if match := _EXPORTED.match(line) or _EXPORTED_EMPTY.match(line):
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
