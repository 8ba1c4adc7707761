"""E208 and E209: command lines that do not do what they appear to do."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Command
from echelon.lint.edits import Edit, replace_group
from echelon.lint.expanding import NAME
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, Hit, Located, Rule
from echelon.lint.source import clean
from echelon.lint.subject import Subject

_BLANK_BEHIND = pattern(r"^[^#]*\s\\[ \t]+(#.*)?$")
_ALL_ARGUMENTS = pattern(r'"?\$(?:[@*]|\{[@*]\})"?')
_ASKS_ONLY = frozenset({"help", "usage", "version"})
"""Options with which srun runs nothing."""
_BLANK_AT_END = pattern(r"(?<=[ \t]\\)([ \t]+)$")
_EXPORTED = pattern(r"\s*(export|declare|local|readonly) +([A-Za-z_]\w*) +=(?!=) *([^#]*)")
_EXPORTED_EMPTY = pattern(r"\s*(export|readonly) +([A-Za-z_]\w*)= +([^\s#;&|=<>]+)\s*(#.*)?$")
_EXPORTED_PART = pattern(
    r"\s*(export) +([A-Za-z_]\w*)=([^\s\"'$`;#&|()]*,)( +)(\d[\d,]*)\s*(?:#.*)?$"
)
_OF_VALUE = pattern(r"\s*\$\{?([A-Za-z_]\w*)\}?\s*=(?!=)\s*(\S.*)")
"""An assignment that begins with the value of the variable, not with its name."""
_ONE_WORD = pattern(
    r"\s*(?:(?:export|declare|local|readonly) +)?[A-Za-z_]\w*(\s*=\s*)"
    r"(?:\"[^\"`$\\]*\"|'[^']*'|\$\([^()]*\)|[^\s;&|#<>()\"'`=\\]+)\s*(?:#.*)?$"
)
"""An assignment of one word, with blanks."""


def find_broken_continuations(subject: Subject) -> Iterator[Hit]:
    told: set[tuple[str, int]] = set()
    for shell in subject.shells:
        lines = _lines(subject, shell.path)
        for command in shell.commands if not shell.suspect else ():
            begun = _broken_line(lines, command)
            if not begun or (shell.path, begun) in told:
                continue
            told.add((shell.path, begun))
            reason, fix = _why_it_ends(lines, begun)
            first = command.words[0].text
            yield Hit(
                at=Place(shell.path, begun),
                what=f"{reason}. Bash runs line {command.line} as a separate command"
                + (f": '{first}: command not found'." if first.startswith("-") else "."),
                fix=fix,
                edits=tuple(
                    replace_group(begun, match, "", 1)
                    for match in _BLANK_AT_END.finditer(lines[begun - 1])
                ),
            )

    yield from _empty_steps(subject, told)
    yield from _empty_sessions(subject)


def _empty_sessions(subject: Subject) -> Iterator[Hit]:
    """Find ssh without a command, which runs nothing in a job."""
    for command in subject.batch.commands if subject.batch and subject.is_job else ():
        plain = len(command.words) == len(("ssh", "host")) and not command.stdin
        line = subject.line_at(command)
        if command.name == "ssh" and plain and re.fullmatch(r"\s*ssh\s+\S+\s*(?:#.*)?", line):
            yield Hit(
                at=command,
                what="ssh has no command to run. The next lines run here, not on the other node.",
                fix=f"{line.strip()} '…'",
                severity=ADVICE,
            )


def _empty_steps(subject: Subject, broken: set[tuple[str, int]]) -> Iterator[Hit]:
    """Find srun without a command, unless a broken continuation already explains it."""
    for command, options, rest in subject.sruns:
        lines = {(command.path, line) for line in _lines_of(subject, command)}
        if rest or _ASKS_ONLY & set(options) or not all(word.known for word in command.words):
            continue
        if not lines & broken:
            yield Hit(
                at=command,
                what="srun has no command to run: 'No command given to execute'.",
                fix="srun python train.py  # or remove the line",
                severity=ADVICE,
            )


def _lines_of(subject: Subject, command: Command) -> Iterator[int]:
    """Yield the lines of a command, by the backslashes at their ends."""
    lines = _lines(subject, command.path)
    for number in range(command.line, len(lines) + 1):
        yield number
        if not lines[number - 1].rstrip().endswith("\\"):
            return


def _lines(subject: Subject, path: str) -> list[str]:
    text = subject.text if path == subject.path else subject.files.read(path) or ""
    return clean(text).split("\n")


def _broken_line(lines: list[str], command: Command) -> int:
    """Return the line that a command should have continued; 0 if there is none."""
    number = command.line
    if not 1 < number <= len(lines):
        return 0
    own = lines[number - 1].lstrip()
    if _ALL_ARGUMENTS.fullmatch(own.rstrip()):
        indented = lines[number - 1] != own
        return number - 1 if indented and number > 2 and lines[number - 3].endswith("\\") else 0
    if not own.startswith(command.words[0].text) or command.words[0].uses:
        return 0
    if not re.match(r"--?[A-Za-z]", own):
        return number - 1 if _BLANK_BEHIND.search(lines[number - 2]) else 0
    above = (n for n in range(number - 1, 0, -1) if lines[n - 1].strip())
    return next((n for n in above if not lines[n - 1].lstrip().startswith("#")), 0)


def _why_it_ends(lines: list[str], number: int) -> tuple[str, str]:
    line, after = lines[number - 1], lines[number].strip()
    if line.endswith("\\") and after.startswith("#"):
        reason, fix = "The comment on the next line", "move the comment above the command"
    elif line.endswith("\\"):
        reason, fix = "The empty line after it", "remove the empty line"
    elif re.search(r"\\[ \t]+(#.*)?$", line):
        reason, fix = "The space after the backslash", "remove everything after the backslash"
    else:
        reason, fix = "A missing backslash at the end of the line", f"{line.strip()} \\"
    return f"{reason} ends this command", fix


def find_blanks_around_equals(subject: Subject) -> Iterator[Hit]:
    for command in subject.commands:
        name, second = command.words[0].text, command.words[1:2]
        sign = second[0].text if second and not second[0].quoted else ""
        if NAME.fullmatch(name) and (sign == "=" or (name.isupper() and re.match("=[^=]", sign))):
            value = " ".join([sign[1:], *(word.text for word in command.words[2:])]).strip()
            said = f"{name}: command not found"
            yield _blanks(subject, command, name, f"{name}={value}", said)
        empty = [own.name for own in command.assignments if own.value.text == ""]
        run = command.words[0].number is not None or _is_told("".join(empty[-1:]), name)
        if empty and len(command.words) == 1 and run:
            fix, said = f"{empty[-1]}={name}", "command not found"
            yield _blanks(subject, command, empty[-1], fix, said)
        if match := _OF_VALUE.match(subject.line_at(command)):
            yield Hit(
                at=command,
                what=f"`{match[1]}` is not assigned because of the `$` before its name: 'command "
                "not found'.",
                fix=f"{match[1]}={match[2].strip()}",
            )
    for path in dict.fromkeys(shell.path for shell in subject.shells):
        for number, line in enumerate(_lines(subject, path), start=1):
            if match := _EXPORTED.match(line):
                fix = f"{match[1]} {match[2]}={match[3].strip()}"
                said = f"{match[1]}: `=': not a valid identifier"
                yield _blanks(subject, Place(path, number), match[2], fix, said)
            elif match := _EXPORTED_PART.match(line):
                yield Hit(
                    at=Place(path, number),
                    what=f"`{match[2]}` is '{match[3]}' because of the space after the comma: "
                    f"'{match[5]}: not a valid identifier'.",
                    fix=f"export {match[2]}={match[3]}{match[5]}",
                    edits=(replace_group(number, match, "", 4),),
                )
            elif match := _EXPORTED_EMPTY.match(line):
                yield Hit(
                    at=Place(path, number),
                    what=f"`{match[2]}` is empty because of the space after `=`. Bash takes "
                    f"'{match[3]}' as the name of another variable.",
                    fix=f"{match[1]} {match[2]}={match[3]}",
                    edits=_joined(number, line),
                )


def _is_told(name: str, program: str) -> bool:
    """Tell whether a rendezvous variable precedes $(…), whose output bash would then run."""
    return program.startswith("$(") and name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def _blanks(subject: Subject, at: Located, name: str, fix: str, said: str) -> Hit:
    lines = _lines(subject, at.path)
    return Hit(
        at=at,
        what=f"`{name}` is not assigned because of the space next to `=`: '{said}'.",
        fix=fix,
        edits=_joined(at.line, lines[at.line - 1]) if at.line <= len(lines) else (),
    )


def _joined(number: int, line: str) -> tuple[Edit, ...]:
    """Return the edit that removes the blanks, if the value is one word."""
    found = _ONE_WORD.match(line)
    return (replace_group(number, found, "=", 1),) if found else ()


RULES = (
    Rule(
        code="E208",
        title="broken line continuation",
        severity=ERROR,
        check=find_broken_continuations,
        why="A backslash continues a command only if it is the last character of a line. A "
        "comment or an empty line ends the command. Bash then runs the next line, often an "
        "option, as a command. An srun command without a program fails, too, which is advice.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
-python prepare.py \\\x20
+python prepare.py \\
     --fast
""",
    ),
    Rule(
        code="E209",
        title="spaces around `=` in an assignment",
        severity=ERROR,
        check=find_blanks_around_equals,
        why="Bash splits a line at spaces first. `NAME = value` runs the program NAME with two "
        "arguments and does not change the variable.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-MASTER_ADDR = $(hostname)    # <- here
+MASTER_ADDR=$(hostname)
 export MASTER_ADDR
 srun python train.py
""",
    ),
)
