"""A bash script as data: its commands in order, with what their words come to.

The tree is tree-sitter's; `reading.py` walks it. Nothing is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from echelon.checks.lint.words import Moment, Word


class Where(StrEnum):
    """Who runs a shell, and so: where its variables are expanded."""

    BATCH = "batch"
    """Slurm, once, on the first node."""
    TASK = "task"
    """srun, once for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    name: str
    value: Word
    path: str
    line: int
    where: Where
    certain: bool
    """Not in a branch, a loop or a function."""
    function: str = ""
    """The function in which it is, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[Word, ...]
    """The program and its arguments."""
    path: str
    line: int
    where: Where
    moment: Moment
    """When it was run: what the variables were then."""
    assignments: tuple[Assignment, ...] = ()
    """Variables for it alone: `NAME=value program`."""
    background: bool = False
    """Ends with &."""
    piped_into: tuple[str, ...] = ()
    """The programs behind it in a pipe."""
    piped: bool = False
    """It reads what another one writes."""
    loop: bool = False
    certain: bool = True
    """Not in a branch, a loop or a function."""
    function: str = ""
    substituted: bool = False
    """In a $(…)."""
    stdin: Word | None = None
    """Its heredoc."""

    @property
    def name(self) -> str:
        """The program, without its folder; as it is written where that is not known."""
        return self.words[0].text.rstrip("/").rpartition("/")[2] if self.words else ""

    @property
    def arguments(self) -> tuple[Word, ...]:
        return self.words[1:]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A script, or a text that a shell is given."""

    path: str
    text: str
    where: Where
    commands: tuple[Command, ...]
    """In the order in which they are written, those in $(…) and functions too."""
    assignments: tuple[Assignment, ...]
    exported: frozenset[str]
    """Variables that programs see, from here on or from the beginning."""
    comments: tuple[tuple[int, str, int], ...]
    """Line, text, column."""
    first_line: int
    """Of the first command; 0 when there is none."""
    written: Mapping[str, Word]
    """Files that it writes from heredocs."""
    settings: frozenset[str]
    """What `set` turned on: pipefail, errexit, allexport."""
    suspect: bool = False
    """The parser stumbled: it may be no bash."""
    too_deep: bool = False
    """It is nested so deeply that nothing of it was read."""

    @property
    def names_used(self) -> frozenset[str]:
        """Every variable that is expanded somewhere."""
        words = [word for command in self.commands for word in command.words]
        words += [command.stdin for command in self.commands if command.stdin]
        words += [assignment.value for assignment in self.assignments]
        return frozenset(use.name for word in words for use in word.uses)
