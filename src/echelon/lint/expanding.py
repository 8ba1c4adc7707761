"""Expands words of a bash script: quotes, variables, $(…), $((…)) and here-documents."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tree_sitter import Node

from echelon.lint.bash import Command, Scope, Use, Word, calculate
from echelon.lint.patterns import pattern
from echelon.lint.source import Source

_EXPANSIONS = frozenset(
    {"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"}
)
NAME = pattern(r"[A-Za-z_]\w*", re.ASCII)
_WHOLE_ARRAY = pattern(r"\"?\$\{(\w+)\[[@*]\]\}\"?")
_UNQUOTE = {
    "word": pattern(r"\\(\n|.)", re.DOTALL),
    "string": pattern(r"\\(\n|[$`\"\\])"),
    "script": pattern(r"\\(\n|[$`\"\\])"),
    "heredoc": pattern(r"\\(\n|[$`\\])"),
}
_LINE_END = pattern(r"(?<!\\)\n")


class Expander:
    """Expands words of one script with the current values of its variables."""

    def __init__(self, source: Source, scope: Scope, run: Callable[[Node], list[Command]]) -> None:
        self._source, self._scope = source, scope
        self._run = run
        """Reads and returns the commands in $(…)."""

    def word(self, node: Node) -> list[Word]:
        """Return the expanded word; "$@" can give several."""
        text = self._source.text(node)
        if text.strip('"') in ("$@", "$*"):
            unknown = Word(text="$@", line=self._line(node), known=False, quoted=True)
            positional = self._scope.positional
            return [unknown] if positional is None else list(positional)
        if (match := _WHOLE_ARRAY.fullmatch(text)) and match[1] in self._scope.arrays:
            items = self._scope.arrays[match[1]]
            if self._scope.spend(0, len(items)):
                return list(items)
        if node.type in ("concatenation", "array", "command_name"):
            return self._concatenation(node)
        return [self._single_word(node, text)]

    def _single_word(self, node: Node, text: str) -> Word:
        line = self._line(node)
        if node.type == "string":
            kind = "script" if _LINE_END.search(text) else "string"
            return replace(self._pieces(node, 1, 1, kind), quoted=True)
        if node.type in ("raw_string", "ansi_c_string"):
            content = text[1:-1] if node.type == "raw_string" else text[2:-1]
            return Word(text=content, line=line, quoted=True, text_line=line)
        if node.type in _EXPANSIONS:
            return self._expansion(node)
        if node.type == "process_substitution":
            self._run(node)
            return Word(text=text, line=line, known=False, quoted=True)
        return Word(text=_unquote(text, "word"), line=line, quoted="\\" in text)

    def _concatenation(self, node: Node) -> list[Word]:
        children = (child for child in node.named_children if child.type != "comment")
        parts = [word for child in children for word in self.word(child)]
        if not parts:
            return []
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.joined(part)
        return [replace(whole, quoted=any(part.quoted for part in parts), text_line=0)]

    def _pieces(self, node: Node, before: int, after: int, kind: str) -> Word:
        """Join the literal text and the expansions of a node."""
        start, end = node.start_byte + before, max(node.start_byte + before, node.end_byte - after)
        line = self._line(node)
        whole = Word(text="", line=line, text_line=line)
        expansions = [child for child in node.children if child.type in _EXPANSIONS]
        for child in expansions:
            whole = whole.joined(self._literal(start, child.start_byte, line, kind))
            piece = self._expansion(child)
            alone = not whole.text and not self._source.between(child.end_byte, end).strip()
            if piece.text_line and alone:
                whole = replace(whole, text_line=piece.text_line)
            whole = whole.joined(piece)
            start = child.end_byte
        return whole.joined(self._literal(start, end, line, kind))

    def _literal(self, start: int, end: int, line: int, kind: str) -> Word:
        return Word(text=_unquote(self._source.between(start, end), kind), line=line)

    def _expansion(self, node: Node) -> Word:
        line = self._line(node)
        if node.type == "command_substitution":
            return self._substitution(node)
        if node.type == "arithmetic_expansion":
            return self._arithmetic(node)
        names = [child for child in descend(node) if child.type == "variable_name"]
        if not names:
            return Word(text=self._source.text(node), line=line, known=False)
        name = self._source.text(names[0])
        operators = {child.type for child in node.children} - {"${", "}", "$"}
        plain = operators <= {"variable_name"}
        guarded = bool(operators & {":-", "-", ":=", "=", ":?", "?", ":+", "+"})
        word = self._scope.expand(name, line, guarded=guarded)
        others = tuple(
            Use(name=self._source.text(other), line=line, guarded=True) for other in names[1:]
        )
        if plain or (guarded and word.known and not operators & {":+", "+"}):
            return word
        for default in (c for c in descend(node) if c.type == "command_substitution"):
            made = self._substitution(default)
            word = replace(word, commands=word.commands + made.commands)
        return replace(
            word, text=self._source.text(node), known=False, uses=word.uses + others, text_line=0
        )

    def _arithmetic(self, node: Node) -> Word:
        line, inner = self._line(node), self._source.text(node)[3:-2]
        names = NAME.findall(inner)
        parts = [self._scope.expand(name, line) for name in names]
        nested = [c for c in descend(node) if c.type == "command_substitution"]
        parts += [self._substitution(child) for child in nested]
        filled = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: self._scope.expand(m[1], line).text, inner
        )
        value = calculate(filled)
        known = value is not None and all(part.known for part in parts)
        whole = Word(text=str(value) if known else self._source.text(node), line=line, known=known)
        for part in parts:
            whole = replace(
                whole, uses=whole.uses + part.uses, commands=whole.commands + part.commands
            )
        return whole

    def _substitution(self, node: Node) -> Word:
        """Read $(…); its output is unknown, except for a here-document that cat prints."""
        line, run = self._line(node), self._run(node)
        uses = tuple(use for command in run for word in command.words for use in word.uses)
        first = run[0] if run else None
        if first and len(first.words) == 1 and first.name == "cat" and first.stdin:
            return replace(first.stdin, text=first.stdin.text.rstrip("\n"), commands=tuple(run))
        return Word(
            text=self._source.text(node), line=line, known=False, uses=uses, commands=tuple(run)
        )

    def heredoc(self, node: Node) -> Word | None:
        start = next((c for c in node.children if c.type == "heredoc_start"), None)
        body = next((c for c in node.children if c.type == "heredoc_body"), None)
        if start is None or body is None:
            return None
        line = self._line(body)
        if self._source.text(start)[:1] in ("'", '"', "\\"):
            word = Word(text=self._source.text(body), line=line, text_line=line)
        else:
            word = self._pieces(body, 0, 0, "heredoc")
        if node.children[0].type == "<<-":
            word = replace(word, text=re.sub(r"(?m)^\t+", "", word.text))
        return replace(word, quoted=True)

    def _line(self, node: Node) -> int:
        return self._source.line(node.start_byte)


def descend(node: Node) -> Iterator[Node]:
    for child in node.children:
        yield child
        if child.type != "command_substitution":
            yield from descend(child)


def _unquote(text: str, kind: str) -> str:
    # In a text of several lines, they keep their numbers; the inner shell joins them.
    joined = "\\\n" if kind == "script" else ""
    return _UNQUOTE[kind].sub(lambda m: joined if m[1] == "\n" else m[1], text)
