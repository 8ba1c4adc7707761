"""What a rule is: a code, what it looks for, and a bad and a good script that show it.

The examples are what `echelon lint --explain` prints and what the tests try. An example may have
several files: a line `--- name` begins the next, and the first is job.sh if it has no such line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from echelon.checks.lint.finding import Severity
from echelon.checks.lint.subject import Subject

ERROR, WARNING, ADVICE = Severity.ERROR, Severity.WARNING, Severity.ADVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place where a rule holds."""

    path: str
    line: int
    what: str
    """What will happen at run time, in one sentence."""
    fix: str
    """Text to paste, or what to do."""
    severity: Severity | None = None
    """When it is less than the rule's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    code: str
    """Never used for anything else afterwards."""
    title: str
    """The defect, in a few words."""
    severity: Severity
    check: Callable[[Subject], Iterator[Hit]]
    why: str
    """What is behind it."""
    bad: str
    """A script with this defect and no other; `# <- here` marks the line."""
    good: str
    """The same without it."""


def example_files(example: str) -> dict[str, str]:
    """Return an example's files by name, the one to be linted first."""
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
