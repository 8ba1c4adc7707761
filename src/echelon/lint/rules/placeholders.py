"""E116: values that are still to be filled in."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.generated import generated_jobs
from echelon.lint.patterns import pattern
from echelon.lint.request import Directive
from echelon.lint.rule import ADVICE, WARNING, Hit, Located, Rule, Severity
from echelon.lint.rules.unfilled_files import find_unfilled_files
from echelon.lint.subject import Subject
from echelon.lint.unfinished import is_template

_PLACEHOLDER = pattern(
    r"\.\.\.|<[^<>]*>|\[[a-z][a-z _-]*\]|\S*x{3,}|your[-_.@]\S*|\S*\{+\s*\w+\s*\}+\S*|"
    r"%%\w+%%|@\w+@|__\w+__|your(?:account|partition|project|group)\w*|<[^<>]+>@\S+",
    re.IGNORECASE,
)
_PLACEHOLDER_NAME = pattern(r"X|(?:[A-Z]+_)*(?:ACCOUNT|PARTITION|QOS|PROJECT)(?:_NAME|_HERE)?")
_PLACEHOLDER_IN_LINE = pattern(
    r"\{\{[^{}]*\}\}|<[A-Za-z][^<>]*>|(?<!\$)\{{1,4}[^{}\n]{1,80}\}{1,4}|"
    r"=\s*\[[A-Za-z][A-Za-z _-]*\]"
)
_PLACEHOLDER_IN_VALUE = pattern(
    r"""^[^#]*?\b\w+=["']?[^"'#\s]*?(<[A-Za-z][A-Za-z _./-]+>|"""
    r"""(?<![\w./-])[\w./-]*\bpath/to/[\w./-]*|"""
    r"""\byour[-_/]\w+|\bYOUR_[A-Z]\w+|\b[Yy]our(?:Path|Name|Project|Account|User)\w*|REPLACE_\w+|CHANGE_?ME|"""
    r"""(?<==)\.\.\.(?!\S)|(?<==["'])\.\.\.(?=["']))"""
)
_DEFAULT = pattern(r"\$\{\w+:?([-=?])")
"""The start of a default, as in ${DATA:-/path/to/data}."""
_PLACEHOLDER_PATH = pattern(
    r"(?<![\w./-])/?path/to/[\w./-]*|^YOUR_[A-Z][A-Z_]+(?:\.\w+)?$"
    r"|^(?:\./)?your_\w+\.(?:py|sh)$"
)
_EMPTY_KEY = pattern(r"\s*export\s+(?:WANDB_API_KEY|HF_TOKEN|\w+_API_KEY)=(?:\"\"|'')?\s*(?:#.*)?$")
"""A key that is exported without a value."""
_MAY_BE_LEFT = pattern(r"path/to|YOUR_|your_")
_IN_BRACKETS = pattern(r"<[a-z][\w -]*>", re.IGNORECASE)
_ELLIPSIS = pattern(r"(?:^|[=/])(?<!\./)\.\.\.(?=[\w/])")
"""A part of a path that was left out."""
_PLACEHOLDER_PART = pattern(r"(?<=/)<[A-Za-z][\w -]*>(?=/)")
"""A part of a path, which bash takes for two redirections."""
_COMMENT = pattern(r"(?:^|\s)#.*")
_PRINTS = frozenset({"echo", "printf", "cat", "grep", "sed", "awk"})
_PLACEHOLDER_FOLDER = pattern(r"(?:^|/)(?:<[^<>]+>|your[-_][\w-]+|path/to)(?=/|$)", re.IGNORECASE)
_TEMPLATE = pattern(r"=(#\w+#)")
"""A value that another program fills in; for Slurm, it is a comment."""
_GIVEN_LATER = pattern(
    r"(?i)\s#.*\b(?:set|filled|given|passed|provided|overrid\w+|replaced) "
    r"(?:by|in|via|with|from|at|on|using)\b|\s#.*\bsbatch\b"
)
"""A comment that says that the command line has the value."""
_MANY = 3
_LONGEST = 2000
_FREE_TEXT = frozenset({"comment", "constraint", "job-name", "output", "error", "wckey"})
"""Options for which such a value is valid."""


def is_placeholder(item: Directive) -> bool:
    """Tell whether a value is still to be filled in, such as <account> or {partition}."""
    if item.option in ("output", "error", "chdir") and _PLACEHOLDER_FOLDER.search(item.value):
        return True
    if item.option == "comment":
        return bool(_IN_BRACKETS.fullmatch(item.value))
    if item.option in ("account", "partition", "qos") and _PLACEHOLDER_NAME.fullmatch(item.value):
        return True
    return item.option not in _FREE_TEXT and bool(
        _PLACEHOLDER.fullmatch(item.value) and "$" not in item.value
    )


def placeholder_in(line: str) -> str:
    """Return the placeholder in a line that cannot be parsed because of it; empty if none."""
    found = _PLACEHOLDER_IN_LINE.search(line)
    return found[0].lstrip("= ") if found else ""


def find_placeholders(subject: Subject) -> Iterator[Hit]:
    lines = subject.text.split("\n")
    found = [(i.line, i.value, i.option) for i in subject.directives.items if is_placeholder(i)]
    unread = [number for number, _ in subject.directives.broken]
    unread += [item.line for item in subject.directives.items if not item.value]
    for number in dict.fromkeys(unread):
        filled = _TEMPLATE.search(lines[number - 1])
        if placeholder := filled[1] if filled else placeholder_in(lines[number - 1]):
            found.append((number, placeholder, ""))
    # Another program fills in a file that has many of them.
    template = sum(value[:1] in ("{", "#", "%", "@", "_") for _, value, _ in found) >= _MANY
    template = template or is_template(subject.path, subject.text)
    for number, value, option in found:
        given = _GIVEN_LATER.search(lines[number - 1])
        advice = template or option in ("mail-user", "comment") or given is not None
        severity = ADVICE if advice else None
        yield _unfilled(Place(subject.path, number), value, severity)
    is_job = subject.is_job or any(generated_jobs(subject.text))
    if not is_job or any(shell.suspect for shell in subject.shells):
        return  # bash stops at a placeholder without quotes, which E210 reports
    yield from find_unfilled_files(subject)
    yield from _placeholder_values(subject)
    if any(_MAY_BE_LEFT.search(shell.text) for shell in subject.shells):
        yield from _placeholder_paths(subject)
    if any("..." in shell.text for shell in subject.shells):
        yield from _left_out(subject)
    if any("/<" in shell.text for shell in subject.shells):
        yield from _placeholder_parts(subject)


def _placeholder_values(subject: Subject) -> Iterator[Hit]:
    for assignment in subject.assignments:
        line = subject.line_at(assignment)
        if len(line) > _LONGEST:
            continue  # not written by a person
        match = _PLACEHOLDER_IN_VALUE.search(line)
        if _EMPTY_KEY.match(line) and len(subject.assigned(assignment.name)) == 1:
            yield Hit(
                at=assignment,
                what=f"`{assignment.name}` is empty, so programs do not find the key.",
                fix=f'export {assignment.name}="$(cat ~/.secrets/key)"  # or log in once by hand',
                severity=ADVICE,
            )
        if "_" in assignment.name and assignment.value.text == assignment.name:
            yield _unfilled(assignment, assignment.name, None)
        elif match and not (default := _DEFAULT.search(match[0])):
            yield _unfilled(assignment, match[1], None)
        elif match and default and default[1] != "?":  # which is the text of an error
            yield _unfilled(assignment, match[1], ADVICE)


def _placeholder_paths(subject: Subject) -> Iterator[Hit]:
    for command in (c for c in subject.commands if c.name not in _PRINTS):
        for word in command.words:
            match = _PLACEHOLDER_PATH.search(word.text)
            at = Place(command.path, word.line)
            # A word with blanks is a text, or a script whose commands are read separately.
            if match and " " not in word.text and match[0] in subject.line_at(at):
                yield _unfilled(at, match[0], None)


def _left_out(subject: Subject) -> Iterator[Hit]:
    """Find paths with `...` in the place of a part."""
    for command in (c for c in subject.commands if c.name not in _PRINTS | {"go"}):
        for word in command.words:
            at = Place(command.path, word.line)
            match = _ELLIPSIS.search(word.text)
            part = len(word.text) > len("...") and " " not in word.text
            if match and part and match[0] in subject.line_at(at):
                yield _unfilled(at, word.text.rpartition("=")[2], ADVICE)


def _placeholder_parts(subject: Subject) -> Iterator[Hit]:
    for command in (c for c in subject.commands if c.name not in _PRINTS):
        line = subject.line_at(command)
        match = _PLACEHOLDER_PART.search(_COMMENT.sub("", line))
        quoted = match and any(line[: match.start()].count(quote) % 2 for quote in "\"'")
        if match and not quoted:
            yield _unfilled(command, match[0], None)


def _unfilled(at: Located, value: str, severity: Severity | None) -> Hit:
    return Hit(
        at=at,
        what="The value is still a placeholder.",
        fix=f"replace {value} with your own value",
        severity=severity,
    )


RULES = (
    Rule(
        code="E116",
        title="placeholder value",
        severity=WARNING,
        check=find_placeholders,
        why="Example scripts use placeholders for values that depend on the user or the cluster. "
        "Replace them before you submit the script. A placeholder in a file that the job reads is "
        "advice.",
        example="""\
 #!/bin/bash
-#SBATCH --account=<project>    # <- here
+#SBATCH --account=physics
 python train.py
""",
    ),
)
