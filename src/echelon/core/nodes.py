"""Slurm's host lists: `rack[1-2]n[01-16],gpu7` ⇄ the names, in order.

Order is kept both ways, because a node's place in the list is its node rank.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

from echelon.errors import UsageError

MAX_HOSTS = 65536
"""Slurm's own limit for one list; a typing error must not fill the memory."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"[0-9]{1,18}")
_DIGITS = re.compile(r"([0-9]+)")


# --- list → names ---------------------------------------------------------------------------


def expand(text: str) -> list[str]:
    """Return the names in a host list; an empty list for an empty text.

    Raises:
        UsageError: not a host list; the message shows the position of the error.
    """
    return list(_Reader(text.strip()).hosts()) if text.strip() else []


class _Reader:
    """Parses a host list from left to right; `at` is the position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.count = 0

    def hosts(self) -> Iterator[str]:
        while True:
            parts = self._parts()
            for pieces in itertools.product(*parts):
                self.count += 1
                if self.count > MAX_HOSTS:
                    raise self._wrong(f"more than {MAX_HOSTS} hosts")
                yield "".join(pieces)
            if self.at == len(self.text):
                return
            self._take(",", "',' or the end")

    def _parts(self) -> list[list[str]]:
        """Parse one entry: parts of a name and, in brackets, numbers."""
        parts: list[list[str]] = []
        while self.at < len(self.text) and self.text[self.at] != ",":
            if self.text[self.at] == "[":
                parts.append(self._bracket())
            else:
                parts.append([self._match(_NAME, "a host name")])
        if not parts:
            raise self._wrong("expected a host name")
        return parts

    def _bracket(self) -> list[str]:
        self._take("[", "'['")
        numbers = self._range()
        while self._peek() == ",":
            self.at += 1
            numbers += self._range()
        self._take("]", "',', '-' or ']'")
        return numbers

    def _range(self) -> list[str]:
        first = self._match(_NUMBER, "a number")
        if self._peek() != "-":
            return [first]
        self.at += 1
        start = self.at
        last = self._match(_NUMBER, "a number")
        if int(last) < int(first):
            self.at = start
            raise self._wrong(f"{last} is less than {first}")
        if int(last) - int(first) >= MAX_HOSTS:
            self.at = start
            raise self._wrong(f"more than {MAX_HOSTS} hosts")
        return [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self, character: str, expected: str) -> None:
        if self._peek() != character:
            raise self._wrong(f"expected {expected}")
        self.at += 1

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self.text, self.at)
        if not match:
            raise self._wrong(f"expected {expected}")
        self.at = match.end()
        return match[0]

    def _wrong(self, reason: str) -> UsageError:
        found = repr(self._peek()) if self._peek() else "the end"
        return UsageError(
            f"host list '{self.text}' is wrong at character {self.at + 1} ({found}): {reason}",
            hint="a host list looks like node[01-16,20],gpu7",
        )


# --- names → list ---------------------------------------------------------------------------


def compress(names: Iterable[str]) -> str:
    """Return the short form of the names, in their order: `expand(compress(names)) == list(names)`.

    Raises:
        UsageError: a name that cannot be part of a host list.
    """
    patterns = []
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"'{name}' is not a host name",
                hint="host names are made of letters, digits, '.', '_' and '-'",
            )
        # Odd indices hold the digits: "rack1n01" → ("rack", "1", "n", "01", "").
        patterns.append(tuple(_DIGITS.split(name)))
    # Slurm accepts brackets only if the name ends with one, and expands three of them in its own
    # order: so compress the last number first, then the one before it.
    for depth in (1, 3):
        patterns = list(_fold(patterns, depth))
    return ",".join("".join(pattern) for pattern in patterns)


def _fold(patterns: list[tuple[str, ...]], depth: int) -> Iterator[tuple[str, ...]]:
    """Merge neighbours that differ only in the `depth`-th part from the right, a number."""

    def shape(pattern: tuple[str, ...]) -> tuple[object, ...]:
        if len(pattern) <= depth or pattern[-1] or (depth > 1 and pattern[-2][0] != "["):
            return (None, pattern)
        at = len(pattern) - 1 - depth
        return (pattern[:at], pattern[at + 1 :])

    for kind, run in itertools.groupby(patterns, key=shape):
        group = list(run)
        if len(group) == 1 or kind[0] is None:
            yield from group
            continue
        at = len(group[0]) - 1 - depth
        numbers = ",".join(_ranges([pattern[at] for pattern in group]))
        yield (*group[0][:at], f"[{numbers}]", *group[0][at + 1 :])


def _ranges(numbers: list[str]) -> Iterator[str]:
    """`01 02 03 7` → `01-03`, `7`."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
    yield first if first == last else f"{first}-{last}"
