"""Expected output against what was printed. Pure.

`…` stands for anything within a line, and alone on a line for any number of lines. Two spaces or
more within a line are as good as any other number of them: a table is as wide as what is in it.
"""

import difflib
import re
from collections.abc import Sequence

ANY = "…"
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])")
_PIECE = re.compile(r"\d+(?:[.:]\d+)*|[A-Za-z_]+| +|.")
_ALWAYS = re.compile(
    r"\d+\.\d+(?= ?m?s\b)|\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?)?"
)
"""Durations and dates: two runs may happen to take as long, and are mostly of one day."""
_TORN = re.compile(rf"(?:\b[0-9a-f]+|[0-9]+)?{ANY}(?:[\w.:-]{{0,4}}{ANY})*(?:[0-9a-f]+\b|[0-9]+)?")
"""What is left of a number or an id where two of them happen to agree in part."""
_SLOW = ("waiting for Slurm to respond",)
"""Notices that a command prints only where the machine is slow: no page shows them."""


def shown_lines(output: str) -> list[str]:
    """Return what a terminal would show of it, on a machine that is not slow."""
    lines = [_ANSI.sub("", line).rstrip("\r").rpartition("\r")[2] for line in output.split("\n")]
    return _trimmed([line for line in lines if line not in _SLOW])


def matches(expected: Sequence[str], lines: Sequence[str]) -> bool:
    """Tell whether this is what was expected."""
    return _align(_trimmed(expected), _trimmed(lines))[0] == 0


def line_matches(expected: str, line: str) -> bool:
    pieces = (re.escape(piece) for piece in _narrow(expected.rstrip()).split(ANY))
    return re.fullmatch(".*".join(pieces), _narrow(line.rstrip())) is not None


def renew(expected: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines, but as they were expected wherever that still holds."""
    return _align(_trimmed(expected), _trimmed(lines))[1]


def generalise(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return what two runs have in common, with `…` for the rest."""
    first, second = _trimmed(first), _trimmed(second)
    shapes = [
        [_narrow(re.sub(r"[0-9a-f]+", "0", line)) for line in lines] for lines in (first, second)
    ]
    found: list[str] = []
    matcher = difflib.SequenceMatcher(a=shapes[0], b=shapes[1], autojunk=False)
    for what, begin, end, other, other_end in matcher.get_opcodes():
        if what == "equal" or (what == "replace" and end - begin == other_end - other):
            pairs = zip(first[begin:end], second[other:other_end], strict=True)
            found += [_common(*pair) for pair in pairs]
        elif found[-1:] != [ANY]:
            found.append(ANY)
    return found


def _common(one: str, other: str) -> str:
    """Return a line that is matched by both."""
    pieces = [_PIECE.findall(_ALWAYS.sub(ANY, line)) for line in (one, other)]
    keys = [[_narrow(f".{piece}") for piece in line] for line in pieces]
    matcher = difflib.SequenceMatcher(a=keys[0], b=keys[1], autojunk=False)
    found = [
        "".join(pieces[0][begin:end]) if what == "equal" else ANY
        for what, begin, end, _other, _end in matcher.get_opcodes()
    ]
    return _TORN.sub(ANY, "".join(found))


def _narrow(line: str) -> str:
    return re.sub(r"(?<=\S) {2,}", "  ", line)


def _trimmed(lines: Sequence[str]) -> list[str]:
    found = [line.rstrip() for line in lines]
    while found and not found[-1]:
        found.pop()
    return found


def _align(expected: Sequence[str], lines: Sequence[str]) -> tuple[float, list[str]]:
    """Return the best way to read the lines as the expected ones: its cost, and the result."""
    swap, drop, add = 1.0, 1.5, 1.5
    # From the end to the beginning: best[j] is the cost from expected[i] and lines[j] on, below[j]
    # that from expected[i + 1] and lines[j] on.
    ways: list[list[str]] = [[""] * (len(lines) + 1) for _ in range(len(expected) + 1)]
    below = [add * (len(lines) - j) for j in range(len(lines) + 1)]
    ways[-1] = ["add"] * len(lines) + ["end"]
    for i in range(len(expected) - 1, -1, -1):
        best = [0.0] * (len(lines) + 1)
        for j in range(len(lines), -1, -1):
            anything = expected[i] == ANY
            options = [(below[j] + (0 if anything else drop), "keep" if anything else "drop")]
            if j < len(lines):
                options.append((best[j + 1] + add, "add"))
                if anything:
                    options.append((best[j + 1], "swallow"))
                elif line_matches(expected[i], lines[j]):
                    options.insert(0, (below[j + 1], "match"))
                else:
                    options.append((below[j + 1] + swap, "swap"))
            best[j], ways[i][j] = min(options, key=lambda option: option[0])
        below = best
    return below[0], _walk(expected, lines, ways)


def _walk(
    expected: Sequence[str], lines: Sequence[str], ways: Sequence[Sequence[str]]
) -> list[str]:
    found: list[str] = []
    i = j = 0
    while (way := ways[i][j]) != "end":
        if way in ("match", "keep"):
            found.append(expected[i])
        elif way in ("swap", "add"):
            found.append(lines[j])
        i += way in ("match", "keep", "drop", "swap")
        j += way in ("match", "swallow", "swap", "add")
    return found
