"""E208: commands that end before they appear to."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ERROR, Hit, rule
from echelon.lint.script import Script

_BLANK_BEHIND = pattern(r"^[^#]*\s\\[ \t]+$")


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
