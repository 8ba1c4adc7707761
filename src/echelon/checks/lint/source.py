"""A script's bytes, and where in them a node of the tree is. Two faults of others are kept out.

In the scanner of the bash grammar (0.25) some characters beyond 255 end the process. So it is shown
ASCII alone, byte for byte, and texts are cut from the script itself. And in tree-sitter's Python
binding (0.26) so does the row of a point, in scripts of more than some 250 lines: lines are counted
from byte offsets.
"""

import re
from bisect import bisect_right

from tree_sitter import Node

BYTE_ORDER_MARK = "\ufeff"


def clean(text: str) -> str:
    """Return a text without what an editor of Windows adds to it: a rule of its own tells it."""
    return text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")


class Source:
    def __init__(self, script: str, first_line: int) -> None:
        self._bytes = script.encode(errors="replace")
        self._first_line = first_line
        self._starts = [0]
        for line in self._bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @property
    def shown(self) -> bytes:
        """What the parser gets to see: as long, and with an underscore for what is not ASCII."""
        return re.sub(rb"[\x80-\xff]", b"_", self._bytes)

    def text(self, node: Node) -> str:
        return self.between(node.start_byte, node.end_byte)

    def between(self, start: int, end: int) -> str:
        return self._bytes[start:end].decode(errors="replace")

    def line(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1 + self._first_line

    def column(self, offset: int) -> int:
        return offset - self._starts[bisect_right(self._starts, offset) - 1]
