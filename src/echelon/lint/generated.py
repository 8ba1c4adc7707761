"""Job scripts that a script writes in a here-document, often for sbatch.

The outer shell fills in variables, so only rules apply that need no values.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator

from echelon.lint.patterns import pattern

CODES = frozenset(
    {
        *("E103", "E104", "E105", "E111", "E112", "E113", "E116"),
        *("E503", "E504", "E505", "E507"),
    }
)
"""The rules that apply to such a script."""
_START = pattern(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")


def generated_jobs(text: str) -> Iterator[str]:
    """Yield the job scripts in here-documents, each after as many empty lines as are before it."""
    if "<<" not in text or "#SBATCH" not in text:
        return
    lines, end = text.split("\n"), 0
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(number)
    for number, line in enumerate(lines):
        found = None if number < end or line.lstrip().startswith("#") else _START.search(line)
        if found is None:
            continue
        ends = places.get(found[2], [])
        after = bisect_right(ends, number)
        end = ends[after] if after < len(ends) else number
        body = "\n".join(lines[number + 1 : end])
        if re.search(r"^#SBATCH\s+-", body, re.MULTILINE) and body.lstrip().startswith("#!"):
            known = (_known(line, quoted=bool(found[1])) for line in body.split("\n"))
            yield "\n" * (number + 1) + "\n".join(known)


def _known(line: str, *, quoted: bool) -> str:
    """Return a line as the inner shell sees it; empty for a directive that the outer completes."""
    if line.lstrip().startswith("#SBATCH") and re.search(r"[$`]", line):
        return ""
    return line if quoted else re.sub(r"\\([$`\\])", r"\1", line)
