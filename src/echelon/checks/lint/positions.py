"""Lines and columns of a script, from byte offsets.

A node of tree-sitter's has them too, but its Python binding 0.26 frees the numbers of a point while
it still hands them out: beyond line 257 that ends the process.
"""

from bisect import bisect_right


class Positions:
    def __init__(self, script: bytes, first_line: int) -> None:
        self._first_line = first_line
        self._starts = [0]
        for line in script.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def line(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1 + self._first_line

    def column(self, offset: int) -> int:
        return offset - self._starts[bisect_right(self._starts, offset) - 1]
