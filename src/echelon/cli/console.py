"""Output of commands: results on stdout, everything else on stderr."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from echelon.core.notes import is_terminal as is_terminal  # noqa: PLC0414  likewise
from echelon.core.notes import note as note  # noqa: PLC0414  used as console.note
from echelon.core.records import render_json
from echelon.core.visible import in_one_line, visible
from echelon.errors import EchelonError
from echelon.spec.readers import nearest

_MANY = 200
"""Number of rows from which on a table is printed without rich, which takes a millisecond each."""


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    print(render_json(value, indent=2))  # noqa: T201


def print_result(text: str) -> None:
    """Print a result as text, with control characters escaped."""
    print(visible(text))  # noqa: T201


def print_raw(text: str) -> None:
    """Print text unchanged, including control characters."""
    print(text)  # noqa: T201


def print_file(text: str) -> None:
    """Print the text of a file: unchanged, unless stdout is a terminal."""
    (print_result if is_terminal() else print_raw)(text.rstrip("\n"))


def flush() -> None:
    """Let a program that reads our output see all of it now."""
    if sys.stdout:  # None when it was closed (>&-)
        sys.stdout.flush()


def can_ask() -> bool:
    """Tell whether a user can answer questions."""
    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask(question: str, choices: Sequence[str], default: str) -> str:
    """Ask until the answer is one of the choices; Enter is the default."""
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
    rows = [[in_one_line(cell) for cell in row] for row in rows]
    if len(rows) > _MANY:
        print_result(_render_plain([headings, *rows]))
        return
    from rich import box  # noqa: PLC0415  importing rich takes 60 ms
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    # Captured first, because rich hides the error of a closed pipe. A pipe has no width: lines that
    # a program reads must not be cut.
    console = Console(file=sys.stdout, width=None if is_terminal() else 1_000_000)
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        show_header=any(headings),
    )
    for number, heading in enumerate(headings):
        # The first column is copied into other commands, so it is never cut.
        whole = max(map(len, (heading, *(row[number] for row in rows)))) if number == 0 else None
        table.add_column(heading, no_wrap=True, min_width=whole)
    for row in rows:
        table.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(table)
    print_result("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _render_plain(rows: list[list[str]]) -> str:
    """Return columns as rich would without a terminal."""
    measure: Callable[[str], int] = len
    if not all(cell.isascii() for row in rows for cell in row):
        from rich.cells import cell_len as measure  # noqa: PLC0415  wide characters

    widths = [max(map(measure, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell + " " * (w - measure(cell)) for cell, w in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def print_error(error: EchelonError) -> None:
    """Print an error in one line, and its hint in another."""
    # A quoted value may contain a newline, and must not look like a hint.
    note(f"error: {in_one_line(error.message)}")
    if error.hint:
        note(f"hint: {in_one_line(error.hint)}")
