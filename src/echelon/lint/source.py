"""The bytes of a script and the positions of tree nodes, with workarounds for two crashes.

The scanner of the bash grammar (0.25) crashes on some characters beyond 255. The parser therefore
gets ASCII of the same length, and texts are cut from the original. In tree-sitter's Python binding
(0.26), reading the row of a point crashes in scripts of more than about 250 lines. Line numbers are
therefore computed from byte offsets.

The grammar ends a word before the last name in $A-$B.out, so X=$A-$B.out is an assignment and a
command. It does not if a colon follows the name. It takes the keyword `time` for a program, and the
statement behind it for arguments.
"""

import re
from bisect import bisect_right

from tree_sitter import Node

BYTE_ORDER_MARK = "\ufeff"


_SPLIT = re.compile(rb"(?<=[\w./:,@+=%-])(\$\w+)[./-](?=[\w.$/-])")
_TIMED = re.compile(
    rb"(?m)(?:^|[;|&({])[ \t]*time(?:[ \t]+-p)?(?=[ \t]+(?:\{|for|while|until|if|case)\s)"
)
_CALCULATES = re.compile(rb"\(\(|\[\[|\$\[|\blet\b|\$\{\w+:|<<")


def clean(text: str) -> str:
    """Remove a byte order mark and Windows line endings, which have their own rules."""
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")


class Source:
    """A script.

    Args:
        script: its text.
        first_line: the line of the file where it starts.
        literal: it stands in the file as it is. The value of a variable does not.
    """

    def __init__(self, script: str, first_line: int, *, literal: bool = True) -> None:
        self._bytes = script.encode(errors="replace")
        self._first_line, self._literal = first_line, literal
        self._starts = [0]
        for line in self._bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @property
    def shown(self) -> bytes:
        """The input of the parser, whose bytes are at the same places.

        Every byte that is not ASCII is an underscore, $A-$B.out is $A-$B:out, and `time` before
        another keyword is blank.
        """
        text = re.sub(rb"[\x80-\xff]", b"_", self._bytes)
        text = _TIMED.sub(lambda found: found[0].partition(b"time")[0].ljust(len(found[0])), text)
        return b"\n".join(_without_splits(line) for line in text.split(b"\n"))

    def text(self, node: Node) -> str:
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode(errors="replace")

    def line(self, offset: int) -> int:
        return self._first_line + (bisect_right(self._starts, offset) - 1) * self._literal

    def column(self, offset: int) -> int:
        return offset - self._starts[bisect_right(self._starts, offset) - 1]


def _without_splits(line: bytes) -> bytes:
    """Replace the character that splits a word, in a line without arithmetic."""
    if b"$" not in line or _CALCULATES.search(line):
        return line
    return _SPLIT.sub(rb"\1:", line)
