"""Output of commands: results on stdout, everything else on stderr."""

import errno
import shutil
import sys
from collections.abc import Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from echelon.core.notes import is_terminal as is_terminal  # noqa: PLC0414  for importers
from echelon.core.notes import note as note  # noqa: PLC0414  for importers
from echelon.core.records import render_json
from echelon.core.terminal_escape import in_one_line, visible
from echelon.errors import EchelonError

_NARROWEST = 4
"""Columns that a cell keeps if the terminal is too narrow."""


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    print_raw(render_json(value, indent=2))


def print_result(text: str) -> None:
    """Print a result as text, with control characters escaped."""
    print_raw(visible(text))


def print_raw(text: str) -> None:
    """Print text unchanged, including control characters."""
    try:
        print(text)  # noqa: T201
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = "standard output"
        raise


def print_file(text: str) -> None:
    """Print the text of a file: unchanged, unless stdout is a terminal."""
    (print_result if is_terminal() else print_raw)(text.rstrip("\n"))


def flush() -> None:
    """Write buffered output, so that a program that reads it does not wait."""
    if sys.stdout:  # None when it was closed (>&-)
        sys.stdout.flush()


def can_ask() -> bool:
    """Tell whether a user can answer questions."""
    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask(question: str, choices: Sequence[str], default: str) -> str:
    """Ask until the answer is one of the choices; Enter is the default."""
    import typer  # noqa: PLC0415  slow to load

    from echelon.spec.readers import nearest  # noqa: PLC0415

    note(f"{question} {', '.join(choices)}")
    while True:
        answer = str(
            typer.prompt("  choose one, or press Enter", default=default, err=True)
        ).strip()
        if answer in choices:
            return answer
        note(f"  invalid choice: '{answer}'; {nearest(answer, choices)}")


def print_table(headings: list[str], rows: list[list[str]]) -> None:
    """Print columns: with a rule below the header in a terminal, plain elsewhere."""
    cells = [[in_one_line(cell) for cell in row] for row in rows]
    shown = [headings, *cells] if any(headings) else cells
    # Lines in a pipe must not be cut: a program reads them.
    width = shutil.get_terminal_size().columns if is_terminal() else 0
    print_result("\n".join(render_table(shown, width=width, header=any(headings))))


def render_table(rows: list[list[str]], *, width: int, header: bool) -> list[str]:
    """Return the lines of a table, for a terminal of this width, or for a pipe if it is 0. Pure."""
    columns = zip(*rows, strict=True)
    widths = _fit([max(map(_measure, column)) for column in columns], width) if rows else []
    gap, margin = ("   ", " ") if width else ("  ", "")
    lines = []
    for row in rows:
        texts = [_cut(cell, most) for cell, most in zip(row, widths, strict=True)]
        padded = [text + " " * (most - _measure(text)) for text, most in zip(texts, widths)]  # noqa: B905
        lines.append(f"{margin}{gap.join(padded)}".rstrip())
    if width and header:
        rule = "─" * (sum(widths) + len(gap) * (len(widths) - 1))
        lines[:1] = [f"\x1b[1m{lines[0]}\x1b[0m", f"{margin}{rule}"]
    return ["", *lines, ""] if width else lines


def _fit(widths: list[int], width: int) -> list[int]:
    """Return the widths of columns that fit; the first is never cut: users copy it."""
    if not width or len(widths) < 2:
        return widths
    first, rest = widths[0], [min(one, width) for one in widths[1:]]
    while first + sum(rest) + 3 * len(rest) + 2 > width and max(rest) > _NARROWEST:
        rest[rest.index(max(rest))] -= 1
    return [first, *rest]


def _measure(text: str) -> int:
    """Return how many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_measure_letter, text))


def _measure_letter(letter: str) -> int:
    return 0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1


def _cut(text: str, most: int) -> str:
    if _measure(text) <= most:
        return text
    while _measure(text) >= most:
        text = text[:-1]
    return f"{text}…"


def print_error(error: EchelonError) -> None:
    """Print an error in one line, and its hint in another."""
    # A quoted value may contain a newline, and must not look like a hint.
    note(f"error: {in_one_line(error.message)}")
    if error.hint:
        note(f"hint: {in_one_line(error.hint)}")
