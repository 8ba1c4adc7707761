"""What bash makes of a word: its text where that can be known, and all that went into it.

A variable is worth the word that was assigned to it. So the origin of a value stays known through
any number of variables: that a port came from a job id, or that a rank was expanded too early.
"""

import ast
import operator
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from echelon.checks.lint.bash import Command


_T = TypeVar("_T")
_MOST = 100
"""Origins of one value that are kept."""
_LONGEST = 50_000
"""Characters of one value that are kept: it may double with every line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A variable that is expanded somewhere."""

    name: str
    line: int
    guarded: bool = False
    """With a default for when it is not set: ${NAME:-…}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    text: str
    """What it comes to; what cannot be known stands there as it is written."""
    line: int
    known: bool = True
    """The text is all there is: nothing in it depends on the run."""
    quoted: bool = False
    """Bash does not split it."""
    uses: tuple[Use, ...] = ()
    """The variables in it, and those that they were made of."""
    commands: "tuple[Command, ...]" = ()
    """What runs in its $(…), and in those of its variables."""
    text_line: int = 0
    """Where the text begins, when it is a script of its own."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(use.name for use in self.uses)

    @property
    def number(self) -> int | None:
        """The whole number that it is, if it is known to be one."""
        text = self.text.strip()
        return int(text) if self.known and re.fullmatch(r"[0-9]{1,9}", text) else None

    def joined(self, other: "Word") -> "Word":
        fits = len(self.text) + len(other.text) <= _LONGEST
        return replace(
            self,
            text=self.text + other.text if fits else self.text[:_LONGEST],
            known=self.known and other.known and fits,
            uses=_gather(self.uses, other.uses),
            commands=_gather(self.commands, other.commands),
        )

    def split(self) -> "list[Word]":
        """Return the words that bash splits it into."""
        if self.quoted or not re.search(r"\s", self.text):
            return [self]
        return [replace(self, text=part) for part in _PART.findall(self.text)]


def _gather(first: tuple[_T, ...], second: tuple[_T, ...]) -> tuple[_T, ...]:
    """Join without repeating: a variable that is made of itself again and again stays small."""
    together = {id(item): item for item in (*first, *second)}
    return tuple(together.values())[:_MOST]


_PART = re.compile(r"(?:\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\"[^\"]*\"|'[^']*'|\S)+")
"""A word of a variable's text, where $(…) that is left in it may hold blanks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The variables of a shell at one time. A copy for every command would be far too much."""

    history: "list[tuple[str, Word]]"
    """What was assigned, in order, and may be assigned later."""
    length: int
    """How much of it had been by then."""

    def values(self) -> "dict[str, Word]":
        return dict(self.history[: self.length])


@dataclass(slots=True)
class Scope:
    """The variables of one shell while it is read. The one thing here that changes."""

    values: dict[str, Word] = field(default_factory=dict)
    positional: tuple[Word, ...] | None = None
    """$1 and so on; None where nobody knows."""
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    """Those that are written out, and nowhere changed."""
    _history: list[tuple[str, Word]] = field(init=False)
    """All that was assigned, in order."""

    def __post_init__(self) -> None:
        self._history = list(self.values.items())

    def assign(self, name: str, value: Word, *, certain: bool) -> None:
        """Note a value. Where it is not certain that it is assigned, its text is not known."""
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

    def moment(self) -> "Moment":
        """Return the values as they are now, for later."""
        return Moment(history=self._history, length=len(self._history))

    def expand(self, name: str, line: int, *, guarded: bool = False) -> Word:
        """Return what a variable stands for."""
        use = Use(name=name, line=line, guarded=guarded)
        if name.isdecimal() and self.positional is not None:
            number = int(name)
            if 0 < number <= len(self.positional):
                return self.positional[number - 1]
        value = self.values.get(name)
        if value is None:
            return Word(text=f"${{{name}}}", line=line, known=False, uses=(use,))
        text = value.text if value.known or _is_composed(value.text) else f"${{{name}}}"
        return replace(value, text=text, line=line, uses=_gather((use,), value.uses), quoted=False)


def _is_composed(text: str) -> bool:
    """Tell a text that is partly known, such as a command line, from one that is not at all."""
    return " " in text and not text.startswith(("$(", "`"))


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
    """Return the value of an arithmetic expression of numbers; None when it is anything else."""
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
