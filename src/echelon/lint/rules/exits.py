"""E511: exit statuses that a script looks at too late; `exit` with a wrong one, part of E507."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from echelon.lint.bash import Command, Shell
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit, Rule
from echelon.lint.rules.slips import find_ending_arithmetic
from echelon.lint.subject import Subject

COMPLAINS = pattern(
    r"(?i)\b(?:error|fail(?:ed|ure)?|not found|missing|invalid|unknown|does(?: not|n't) exist|"
    r"cannot|can't|no such|not set|abort(?:ing|ed)?|unsupported|usage(?=:)|before running|"
    r"no (?:[\w-]+ ){1,5}(?:provided|given|specified|supplied|passed|found|set)|"
    r"please (?:provide|specify|pass|set|give)|must (?:be|specify|provide)|required)\b"
)
_PRINTS = frozenset({"echo", "printf", "cat"})
_ASKED_FOR_HELP = pattern(
    r"^\s*(?:(?:(?:el)?if|case|\[+)\s.*|\(?[\w\"'|*\s-]{0,99})(?<![\w-])-(?:h|-help|\?)(?!\w)"
    r"(?:.*\bthen\b|.*\]|[\w\"'|*\s-]{0,99}\))"
)
"""A condition that is true when a person asks for help, which is no error."""
_HELPS = pattern(r"(?i)usage|help")
_IN_SUBSHELL = pattern(r"\([^()]*\bexit(?: 0)?\s*;?\s*\)")
_USES_STATUS = pattern(r"^(?!\s*(?:#|echo\b|printf\b))[^#|&;]*\$(?:\?|\{\?\})")
_ERREXIT_OFF = pattern(r"\bset\s+\+(?:\w*e|o\s+errexit)")
_TESTS_STATUS = pattern(r"\s*if\s+\[\[?\s+\"?\$\?\"?\s+[-=!]\S{1,3}\s+\d+\s+\]\]?")
_PRINTS_STATUS = pattern(r"\s*(?:echo|printf)\b[^'#]*\$\?")
_NEAR = 8
_DECIDES = frozenset({"exit", "return", "exec", "trap", "kill", "scancel"})


def find_message_status(batch: Shell) -> Iterator[Hit]:
    """Find `exit` without a number after an error message, whose status is the job's."""
    commands, lines = batch.commands, batch.text.split("\n")
    texts = _printing_functions(batch)
    for number, command in enumerate(commands):
        text = command.text
        if text not in ("exit", "exit 0") or command.certain or command.substituted:
            continue
        if _HELPS.search(command.function) or _IN_SUBSHELL.search(lines[command.line - 1]):
            continue  # it may be called for --help, or the script continues
        before = reversed(commands[:number])
        messages = list(takewhile(lambda c: c.name in _PRINTS or c.name in texts, before))
        said = (f"{_message(c)} {texts.get(c.name, '')}" for c in messages if not c.certain)
        start = commands[number - len(messages) - 1].line if number > len(messages) else 0
        asked = any(map(_ASKED_FOR_HELP.search, lines[start : command.line]))
        if any(map(COMPLAINS.search, said)) and not asked:
            yield Hit(
                at=command,
                what="After this error, the job is COMPLETED: `exit` without a number ends it with "
                "the status of the command that prints the message, 0."
                if text == "exit"
                else "After this error, the job is COMPLETED, because the status is 0.",
                fix="exit 1",
                severity=None if text == "exit" else ADVICE,
            )


def _printing_functions(batch: Shell) -> dict[str, str]:
    """Return the functions that only print, such as usage, with their texts."""
    inside: dict[str, list[Command]] = {}
    for command in batch.commands:
        if command.function:
            inside.setdefault(command.function, []).append(command)
    return {
        name: " ".join(map(_message, commands))
        for name, commands in inside.items()
        if all(command.name in _PRINTS for command in commands)
    }


def _message(command: Command) -> str:
    return f"{command.text} {command.stdin.text if command.stdin else ''}"


def find_status_of_message(batch: Shell) -> Iterator[Hit]:
    """Find `exit $?` behind a command that only prints, which succeeds."""
    lines = batch.text.split("\n")
    for before, command in pairwise(c for c in batch.commands if not c.substituted):
        same = (before.function, before.certain) == (command.function, command.certain)
        text = lines[command.line - 1]
        follows = 0 <= command.line - before.line <= 1
        exits = command.name == "exit" and re.search(r"\bexit \"?\$\?", text)
        if exits and follows and same and before.name in _PRINTS and "||" not in text:
            yield Hit(
                at=command,
                what=f"`$?` is the status of {before.name}, which is 0.",
                fix="code=$?  # directly behind the command that is meant, then: exit $code",
                severity=ADVICE,
            )


def find_status_of_test(batch: Shell) -> Iterator[Hit]:
    """Find `$?` in a branch of `if [ $? … ]`, where it is the status of the test."""
    lines = batch.text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not _TESTS_STATUS.match(line):
            continue
        for place in range(number, min(number + _NEAR, len(lines))):
            text = lines[place]
            if re.match(r"\s*else\b", text):
                continue
            if _PRINTS_STATUS.match(text):
                before = lines[place - 1]
                if before is line or re.match(r"\s*else\b", before):
                    yield Hit(
                        at=Place(batch.path, place + 1),
                        what=f"`$?` is the status of the test in line {number}, not of the command "
                        "before.",
                        fix="code=$?  # directly behind the command, then use $code",
                        severity=ADVICE,
                    )
            if re.match(r"\s*fi\b", text):
                break


def find_constant_failure(batch: Shell, plain: Sequence[Command]) -> Iterator[Hit]:
    """Find `exit 1` as the last command of a script, whatever happened before."""
    end = plain[-1] if plain else None
    if end is None or not end.certain or not re.fullmatch(r"exit [1-9]\d*", end.text):
        return
    others = (c for c in batch.commands if c.name in _DECIDES and c is not end)
    if not end.words[1].uses and not any(others) and "requeue" not in batch.text:
        yield Hit(
            at=end,
            what=f"The job is always FAILED, because its script ends with `{end.text}`.",
            fix="remove this line: a job has the status of its last command",
        )


def find_late_status(subject: Subject) -> Iterator[Hit]:
    yield from find_ending_arithmetic(subject)
    batch = subject.batch
    if batch is None or "errexit" not in batch.settings or _ERREXIT_OFF.search(batch.text):
        return
    sets = min((c.line for c in batch.commands if c.name == "set"), default=0)
    lines = batch.text.split("\n")
    for number, line in enumerate(lines, start=1):
        if number <= sets or not _USES_STATUS.search(line):
            continue
        before = [c for c in batch.commands if c.line < number and not c.substituted]
        between = lines[before[-1].line - 1 : number - 1] if before else []
        first = next((n for n, text in enumerate(between) if not text.endswith("\\")), None)
        follows = first is not None and not any(map(str.strip, between[first + 1 :]))
        if before and follows and before[-1].unchecked and not before[-1].background:
            yield Hit(
                at=Place(subject.path, number),
                what=f"`$?` is always 0 here: because of `set -e`, the script ends at once if line "
                f"{before[-1].line} fails.",
                fix="code=0; … || code=$?  # with the command in the place of …",
            )


RULES = (
    Rule(
        code="E511",
        title="exit status that `set -e` makes 0",
        severity=ADVICE,
        check=find_late_status,
        why="With `set -e`, bash ends the script when a command fails, so what the next lines do "
        "about the failure never happens.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 set -e
-python train.py
-code=$?    # <- here
+code=0
+python train.py || code=$?
 echo "exit status: $code"
 exit $code
""",
    ),
)
