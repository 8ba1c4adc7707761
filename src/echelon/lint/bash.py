"""A bash script as data: its commands in order, with expanded words.

`reading.py` creates it from tree-sitter's syntax tree. Nothing is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from echelon.lint.words import Moment, Word


class Where(StrEnum):
    """Where a shell runs, and therefore where its variables are expanded."""

    BATCH = "batch"
    """Once, on the first node, started by Slurm."""
    TASK = "task"
    """Once per task, started by srun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    name: str
    value: Word
    path: str
    line: int
    where: Where
    certain: bool
    """False in a branch, a loop or a function."""
    function: str = ""
    """The enclosing function, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    words: tuple[Word, ...]
    """The program and its arguments."""
    path: str
    line: int
    where: Where
    moment: Moment
    """The values of the variables when the command runs."""
    assignments: tuple[Assignment, ...] = ()
    """Variables for this command only: `NAME=value program`."""
    background: bool = False
    """Ends with &."""
    piped_into: tuple[str, ...] = ()
    """The programs after it in a pipe."""
    piped: bool = False
    """Its input comes from a pipe."""
    loop: bool = False
    certain: bool = True
    """False in a branch, a loop or a function."""
    function: str = ""
    substituted: bool = False
    """Inside $(…)."""
    stdin: Word | None = None
    """Its here-document."""

    @property
    def name(self) -> str:
        """The name of the program without its directory."""
        return self.words[0].text.rstrip("/").rpartition("/")[2] if self.words else ""

    @property
    def arguments(self) -> tuple[Word, ...]:
        return self.words[1:]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A script file, or text that is passed to a shell."""

    path: str
    text: str
    where: Where
    commands: tuple[Command, ...]
    """In source order, including those in $(…) and functions."""
    assignments: tuple[Assignment, ...]
    exported: frozenset[str]
    """Variables that are exported anywhere in the script."""
    comments: tuple[tuple[int, str, int], ...]
    """Line, text, column."""
    first_line: int
    """Line of the first command; 0 if there is none."""
    written: Mapping[str, Word]
    """Files that it writes from here-documents."""
    settings: frozenset[str]
    """Options that `set` turned on, such as pipefail."""
    suspect: bool = False
    """The parser reported an error, so this may not be valid bash."""
    too_deep: bool = False
    """Too deeply nested to read; commands and assignments are empty."""

    @property
    def names_used(self) -> frozenset[str]:
        """All variables that are expanded anywhere."""
        words = [word for command in self.commands for word in command.words]
        words += [command.stdin for command in self.commands if command.stdin]
        words += [assignment.value for assignment in self.assignments]
        return frozenset(use.name for word in words for use in word.uses)
