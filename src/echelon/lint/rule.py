"""Rules: a code, a check, an explanation, and an example with and without the problem.

`echelon lint --explain` prints the examples, and the tests run the checks on them. An example can
have several files: a line `--- name` starts the next file. Without such a line the file is job.sh.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from echelon.lint.finding import Severity
from echelon.lint.subject import Subject

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place where a rule found a problem."""

    path: str
    line: int
    what: str
    """What is wrong and what it causes at run time."""
    fix: str
    """Text to paste, or an instruction."""
    severity: Severity | None = None
    """Set if it is lower than the rule's own severity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    code: str
    """Never reused for another rule."""
    title: str
    """The problem in a few words."""
    severity: Severity
    check: Callable[[Subject], Iterator[Hit]]
    why: str
    """Why this is a problem, in two or three sentences."""
    bad: str
    """A script with this problem and no other; `# <- here` marks the line."""
    good: str
    """The same script without the problem."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def example_files(example: str) -> dict[str, str]:
    """Return the files of an example by name; the first one is the file to lint."""
    files: dict[str, str] = {}
    name, lines = "job.sh", list[str]()
    for line in example.splitlines(keepends=True):
        if line.startswith("--- "):
            if lines:
                files[name] = "".join(lines)
            name, lines = line[4:].strip(), []
        else:
            lines.append(line)
    return {**files, name: "".join(lines)}
