"""A bash script as data: its commands in order, with expanded words.

`reading.py` creates it from tree-sitter's syntax tree. Nothing is run. A variable has the word that
was assigned to it, so the origin of a value is known through any number of variables, such as a
port that is derived from the job ID.
"""

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from echelon.core.frozen import frozen
from echelon.lint.patterns import pattern

_T = TypeVar("_T")
_MOST = 100
"""Maximum number of origins to keep per value."""
_LONGEST = 50_000
"""Maximum length of a value, which a script can double with every line."""
_MOST_EXPANDED = 1_000_000
"""Maximum length of all expansions of a script together."""
_PRICE_OF_WORD = 50
"""What a word counts in this sum, in characters."""


@frozen
class Use:
    """An expansion of a variable."""

    name: str
    line: int
    guarded: bool = False
    """The expansion handles an unset variable, as in ${NAME:-…}."""


@frozen
class Word:
    text: str
    """The expanded text; parts with unknown values remain as written."""
    line: int
    known: bool = True
    """The text is complete and does not depend on the run."""
    quoted: bool = False
    """Bash does not split the word."""
    uses: tuple[Use, ...] = ()
    """The variables in the word, and those they were derived from."""
    commands: "tuple[Command, ...]" = ()
    """The commands in $(…), in the word and in its variables."""
    text_line: int = 0
    """The line where the text starts, if it is a script."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(use.name for use in self.uses)

    @property
    def number(self) -> int | None:
        """The value as a whole number; None if it is unknown or not a number."""
        text = self.text.strip()
        return int(text) if self.known and re.fullmatch(r"[0-9]{1,9}", text) else None

    def joined(self, other: "Word") -> "Word":
        fits = len(self.text) + len(other.text) <= _LONGEST
        return Word(
            text=self.text + other.text if fits else self.text[:_LONGEST],
            line=self.line,
            known=self.known and other.known and fits,
            quoted=self.quoted,
            uses=_gather(self.uses, other.uses),
            commands=_gather(self.commands, other.commands),
            text_line=self.text_line,
        )

    def split(self) -> "list[Word]":
        """Return the words that bash splits this word into."""
        if self.quoted or not re.search(r"\s", self.text):
            return [self]
        text = self.text.replace("\\\n", "")  # kept for line numbers where a text is a script
        return [replace(self, text=part) for part in _PART.findall(text)]


def _gather(first: tuple[_T, ...], second: tuple[_T, ...]) -> tuple[_T, ...]:
    """Join without duplicates, so that repeated self-assignment stays small."""
    if not first or not second:
        return first or second
    together = {id(item): item for item in (*first, *second)}
    return tuple(together.values())[:_MOST]


_PART = pattern(r"(?:\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\"[^\"]*\"|'[^']*'|\S)+")
"""A word in the text of a variable; a remaining $(…) may contain spaces."""


@frozen
class Moment:
    """The variables of a shell at one time, without a copy for every command."""

    history: list[tuple[str, Word]]
    """All assignments in order; later ones may be appended."""
    length: int
    """The number of assignments at this time."""

    def values(self) -> dict[str, Word]:
        return dict(self.history[: self.length])


class Where(StrEnum):
    """Where a shell runs, and therefore where its variables are expanded."""

    BATCH = "batch"
    """Once, on the first node, started by Slurm."""
    TASK = "task"
    """Once per task, started by srun."""


@frozen
class Assignment:
    name: str
    value: Word
    path: str
    line: int
    where: Where
    certain: bool
    """False in a branch, a loop or a function."""
    array: bool = False
    """The value is an array, written as (…)."""


@frozen
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
    certain: bool = True
    """False in a branch, a loop, a pipe or a function, and after && or ||."""
    looped: bool = False
    """In a `for` loop, and otherwise certain."""
    function: str = ""
    """The enclosing function, if any."""
    substituted: bool = False
    """Inside $(…)."""
    stdin: Word | None = None
    """Its here-document."""
    start: int = 0
    """Where its node starts in the text of its shell, in bytes."""

    @property
    def always_runs(self) -> bool:
        """Tell whether the job always runs it, perhaps in a loop or a pipe."""
        return self.certain or self.looped or bool(self.piped_into)

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


@frozen
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
    written: Mapping[str, Word]
    """Files that it writes from here-documents."""
    names_read: frozenset[str]
    """Variables that are read anywhere, also in tests, loops and arithmetic."""
    suspect: bool = False
    """The parser reported an error, so this may not be valid bash."""
    too_deep: bool = False
    """Too deeply nested to read; commands and assignments are empty."""

    @cached_property
    def code(self) -> list[str]:
        """The lines that are no comments."""
        return [line for line in self.text.split("\n") if not line.lstrip().startswith("#")]


# --- while a script is read ------------------------------------------------------------------


@dataclass(slots=True)
class Scope:
    """The variables of one shell while it is read; the only mutable class here."""

    values: dict[str, Word] = field(default_factory=dict)
    positional: tuple[Word, ...] | None = None
    """$1 and so on; None if unknown."""
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    """Arrays with literal values that the script does not change."""
    _history: list[tuple[str, Word]] = field(init=False)
    """All assignments in order."""
    spent: int = 0
    """The length of all expansions so far."""

    def __post_init__(self) -> None:
        self._history = list(self.values.items())

    def assign(self, name: str, value: Word, *, certain: bool) -> None:
        """Record an assignment; if it is conditional, the text becomes unknown."""
        if not certain:
            before = self.values.get(name)
            value = replace(
                value,
                text=f"${name}",
                known=False,
                uses=_gather(value.uses, before.uses if before else ()),
                commands=_gather(value.commands, before.commands if before else ()),
            )
        self.values[name] = value
        self._history.append((name, value))

    def spend(self, characters: int, words: int = 0) -> bool:
        """Count the work of an expansion, and tell whether it is within the limit."""
        self.spent += characters + _PRICE_OF_WORD * words
        return self.spent <= _MOST_EXPANDED

    def moment(self) -> Moment:
        """Return a snapshot of the current values."""
        return Moment(history=self._history, length=len(self._history))

    def expand(self, name: str, line: int, *, guarded: bool = False) -> Word:
        """Return the value of a variable."""
        use = Use(name=name, line=line, guarded=guarded)
        if name.isdecimal() and len(name) < 10 and self.positional is not None:
            number = int(name)
            if 0 < number <= len(self.positional):
                return self.positional[number - 1]
        value = self.values.get(name)
        if value is not None and not self.spend(len(value.text)):
            value = None
        if value is None:
            return Word(text=f"${{{name}}}", line=line, known=False, uses=(use,))
        text = value.text if value.known or _is_composed(value.text) else f"${{{name}}}"
        return replace(value, text=text, line=line, uses=_gather((use,), value.uses), quoted=False)


def _is_composed(text: str) -> bool:
    """Tell whether a text is partly known: a command line, or a path with a known last part."""
    if text.startswith(("$(", "`")):
        return False
    return " " in text or (len(text) < _LONGEST_PATH and bool(_NAMED_LAST.fullmatch(text)))


_LONGEST_PATH = 1000
_NAMED_LAST = pattern(r"\$\{?\w+\}?/(?:[\w.+-]+/)*[\w.+-]+")


# --- arithmetic -----------------------------------------------------------------------------

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LARGEST = 10**9


def calculate(expression: str) -> int | None:
    """Return the value of an arithmetic expression of numbers; None for anything else."""
    if len(expression) > 200:
        return None
    try:
        return _calculate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _calculate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_calculate(node.left), _calculate(node.right))
        if abs(value) < _LARGEST:
            return int(value)
    raise ValueError(ast.dump(node))
