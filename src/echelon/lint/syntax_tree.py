"""The syntax tree of a bash script, and what its nodes mean where the grammar reads them oddly."""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from echelon.core.frozen import frozen
from echelon.lint.source import Source, clean

_TREES = 4
"""How many syntax trees to keep."""
_SETTING = frozenset({"variable_assignment", "declaration_command", "for_statement"})
"""Parents of a name that is set, not read."""
_CALCULATING = frozenset(
    {"binary_expression", "unary_expression", "postfix_expression", "ternary_expression"}
)


@frozen
class Tree:
    root: Node
    source: Source
    """The texts and lines of its nodes."""

    def program(self, node: Node) -> str:
        """Return the name of the program in one part of a pipe."""
        while node.type not in ("command_name", "word") and node.named_children:
            node = node.named_children[0]
        return self.source.text(node)

    def breaks(self, before: Node, after: Node) -> bool:
        """Tell whether a line ends between two nodes, without a backslash."""
        gap = self.source.between(before.end_byte, after.start_byte)
        return "\n" in gap.replace("\\\n", "")

    def begin(self, command: Node) -> int:
        """Return where the line begins that has the name of a command and its assignments."""
        begin = command.start_byte
        for before, after in pairwise(command.children):
            if self.breaks(before, after):
                begin = after.start_byte
            if after.type == "command_name":
                break
        return begin

    def spans_lines(self, command: Node) -> bool:
        """Tell whether the grammar took the next lines for arguments of a command."""
        kinds = [child.type for child in command.children]
        first = kinds.index("command_name") if "command_name" in kinds else 0
        return any(self.breaks(*both) for both in pairwise(command.children[first:]))

    def ends_indented(self, redirect: Node) -> bool:
        """Tell whether the end of a here-document is indented, which bash does not accept."""
        ends = [child for child in redirect.children if child.type == "heredoc_end"]
        before = [self.source.column(end.start_byte) for end in ends]
        return redirect.children[0].type == "<<" and any(before)

    def names_read(self) -> Iterator[str]:
        """Yield the variables that the script reads, wherever that is."""
        waiting = [(self.root, "")]
        while waiting:
            node, parent = waiting.pop()
            kind = node.type
            named = kind == "variable_name" and parent not in _SETTING
            if named or (kind == "word" and parent in _CALCULATING):
                yield self.source.text(node)
            elif kind == "raw_string":  # for eval, trap or another shell
                yield from re.findall(r"\$\{?(\w+)", self.source.text(node))
            if node.named_child_count:  # names are named
                waiting += [(child, kind) for child in node.named_children]


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


@lru_cache(maxsize=_TREES)
def parse_bash(text: str) -> Tree:
    source = Source(clean(text), 1)
    return Tree(root=_parser().parse(source.shown).root_node, source=source)


def redirects(node: Node) -> Iterator[Node]:
    """Yield the redirections of a statement, including those nested in a here-document's."""
    for child in node.children_by_field_name("redirect"):
        yield child
        if child.type == "heredoc_redirect":
            yield from (c for c in child.named_children if c.type == "file_redirect")
