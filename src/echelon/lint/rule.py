"""Rules and their findings.

A rule is a function that yields hits. Its docstring is what `echelon lint --explain` prints: the
problem, why it is one, and an example. An example is a diff: its lines begin with a space, with `-`
if they have the problem, or with `+` if they fix it. `# <- here` marks the line of the finding.
`--- name` starts another file; the first one is job.sh. The tests run the rule on both sides.
"""

import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Protocol

from echelon.core.frozen import frozen
from echelon.lint.edits import Edit
from echelon.lint.script import Script

_HERE = "    # <- here"
_EXAMPLE = "\nExample:\n"
_INDENT = 4


class Severity(StrEnum):
    """How likely and how serious the effect is."""

    ERROR = "error"
    """The job certainly fails, hangs, or does something other than what is written."""
    WARNING = "warning"
    """The job will fail at some point, on some clusters, or next to certain other jobs."""
    ADVICE = "advice"
    """The script runs, but could be safer."""


ERROR, WARNING, ADVICE = Severity


class Located(Protocol):
    """A place in a file, or something that has one, such as a command."""

    @property
    def path(self) -> str: ...

    @property
    def line(self) -> int: ...


@frozen
class Hit:
    """One place where a rule found a problem."""

    at: Located
    what: str
    """What is wrong and what it causes at run time."""
    fix: str
    """Text to paste, or an instruction."""
    severity: Severity | None = None
    """Set if it is lower than the rule's own severity."""
    edits: tuple[Edit, ...] = ()
    """The fix as edits of the file, if it is certain."""
    leads: bool = False
    """Whether a finding about several places shows this one first."""


@frozen
class Span:
    """A range of a file. Lines and columns count from 1, and the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@frozen
class Finding:
    """The hits of a rule in a file that say the same, as they are reported."""

    code: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    severity: Severity
    what: str
    fix: str
    also: tuple[Span, ...] = ()
    """Further places with the same problem."""
    edits: tuple[Edit, ...] = ()
    """The fix as edits of the file, if it is certain."""

    @property
    def lines(self) -> list[int]:
        return [self.line, *(span.line for span in self.also)]


@frozen
class Rule:
    code: str
    """Never reused for another rule."""
    title: str
    """The problem in a few words."""
    severity: Severity
    check: Callable[[Script], Iterator[Hit]]
    why: str
    """Why this is a problem, in two or three sentences."""
    example: str
    """A script with this problem and no other, and its fix, as a diff."""

    @property
    def bad(self) -> str:
        lines = self.example.split("\n")[:-1]
        return "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))

    @property
    def good(self) -> str:
        lines = self.example.split("\n")[:-1]
        fixed = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        return fixed.replace(_HERE, "")


Check = Callable[[Script], Iterator[Hit]]


def rule(code: str, severity: Severity) -> Callable[[Check], Rule]:
    """Make a rule of a function, whose docstring has its title, its reason and its example."""

    def make(check: Check) -> Rule:
        text, _, example = inspect.cleandoc(check.__doc__ or "").partition(_EXAMPLE)
        title, _, why = text.partition("\n\n")
        lines = (line[_INDENT:] for line in example.strip("\n").split("\n"))
        return Rule(
            code=code,
            title=title.rstrip("."),
            severity=severity,
            check=check,
            why=" ".join(why.split()),
            example="".join(f"{line or ' '}\n" for line in lines),
        )

    return make
