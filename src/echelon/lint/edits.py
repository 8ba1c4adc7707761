"""Edits that fix a finding: exact replacements in the text of a file. Pure.

Only safe fixes have edits: the script is rejected or plainly misread as it is, and the edit gives
what it says. Other fixes are text for a person.
"""

import re
from collections.abc import Iterable

from echelon.core.frozen import frozen


@frozen
class Edit:
    """Replaces a range of a file. Lines and columns count from 1, and the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def replace_group(line: int, match: re.Match[str], text: str, group: int | str = 0) -> Edit:
    """Return an edit that replaces a group of a match in the text of a line."""
    start, end = match.span(group)
    return Edit(line=line, column=start + 1, end_line=line, end_column=end + 1, text=text)


def insert_line(line: int, text: str) -> Edit:
    """Return an edit that inserts a line before a line."""
    return Edit(line=line, column=1, end_line=line, end_column=1, text=f"{text}\n")


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with the edits; of two that overlap, only the first is applied."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(line: int, column: int) -> int:
        return min(starts[line - 1] + column - 1, len(text))

    # A new line goes before what changes at the start of the line that was there.
    spans = sorted(
        (offset(e.line, e.column), offset(e.end_line, e.end_column), e.text[-1:] != "\n", e.text)
        for e in set(edits)
    )
    parts, done = list[str](), 0
    for start, end, _, new in spans:
        if start >= done:
            parts += [text[done:start], new]
            done = end
    return "".join([*parts, text[done:]])
