"""Walks the syntax tree of a bash script in execution order and records the commands."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, zip_longest

from tree_sitter import Node

from echelon.core.frozen import frozen
from echelon.lint.bash import Assignment, Command, Scope, Shell, Where, Word
from echelon.lint.expanding import NAME, Expander
from echelon.lint.patterns import pattern
from echelon.lint.source import Source, clean
from echelon.lint.syntax_tree import parse_bash, redirects

_NO_WORDS = frozenset(
    {
        *("command_name", "variable_assignment", "comment", "file_redirect"),
        *("heredoc_redirect", "herestring_redirect"),
    }
)
_BRANCHES = frozenset({"if_statement", "case_statement", "elif_clause", "else_clause"})
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_RESERVED = frozenset({"fi", "then", "else", "elif", "do", "done", "esac", ";;", "}", ")"})
"""Words that the grammar accepts as commands, but bash does not."""
_UNFILLED = pattern(r"(?m)^[^#\n]*<[A-Za-z][\w -]*>[ \t]*(#.*)?$")
"""A placeholder at the end of a line; the grammar takes the next line as a file name."""
_SIMPLE = pattern(r"[\w./-]+(?:\s|$)")
_OPERATOR = pattern(r"[|;&<>`]|\$\(")
_LONGEST_ARRAY = 1000
_LONGEST_COMMAND = 2000
_FEW = 20
"""Words to keep of each command when the work of a script exceeds the limit."""
_LONGEST_PIPE = 20
_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})


def read_shell(
    text: str,
    *,
    path: str,
    where: Where,
    first_line: int = 1,
    literal: bool = True,
    values: Mapping[str, Word] | None = None,
    positional: tuple[Word, ...] | None = None,
) -> Shell:
    """Return the commands and assignments of a script.

    Args:
        text: the script.
        path: the file that contains it.
        where: where it runs.
        first_line: the line of the file where it starts.
        literal: it stands there as it is; otherwise, all its lines are the first one.
        values: variables that are known at the start.
        positional: $1 and so on.
    """
    scope = Scope(values=dict(values or {}), positional=positional)
    source = Source(clean(text), first_line, literal=literal)
    reader = _Reader(text, source, path, where, scope)
    try:
        reader.read()
    except RecursionError:  # not written by a person
        unread = _Reader(text, source, path, where, Scope()).result()
        return replace(unread, too_deep=True)
    return reader.result()


@frozen
class _Context:
    """What encloses a node."""

    certain: bool = True
    looped: bool = False
    function: str = ""
    substituted: bool = False
    background: bool = False
    piped_into: tuple[str, ...] = ()
    piped: bool = False
    stdin: Word | None = None


def _evaluated(words: list[Word]) -> list[Word]:
    """Return the command that `eval` runs, if it is a simple one."""
    simple = words[1:] and words[0].text == "eval" and _SIMPLE.match(words[1].text)
    if not simple or any(_OPERATOR.search(word.text) for word in words):
        return words
    return [replace(word, quoted=False) for word in words[1:]]


class _Reader:
    def __init__(self, text: str, source: Source, path: str, where: Where, scope: Scope) -> None:
        self._text, self._path, self._where = text, path, where
        self._scope, self._source = scope, source
        self._tree = parse_bash(text)
        self._words = Expander(source, scope, self._run)
        self._commands: list[Command] = []
        self._assignments: list[Assignment] = []
        self._exported: set[str] = set()
        self._comments: list[tuple[int, str, int]] = []
        self._written: dict[str, Word] = {}
        self._exports_all = False
        self._names_read: set[str] = set()
        self._suspect = False

    def result(self) -> Shell:
        exported = self._exported
        if self._exports_all:
            exported = exported | {assignment.name for assignment in self._assignments}
        return Shell(
            path=self._path,
            text=self._text,
            where=self._where,
            commands=tuple(self._commands),
            assignments=tuple(self._assignments),
            exported=frozenset(exported),
            comments=tuple(self._comments),
            written=self._written,
            names_read=frozenset(self._names_read),
            suspect=self._suspect or bool(_RESERVED & {c.words[0].text for c in self._commands}),
        )

    def read(self) -> None:
        root = self._tree.root
        self._suspect = root.has_error or bool(_UNFILLED.search(self._text))
        self._names_read.update(self._tree.names_read())
        children = root.children
        for number, child in enumerate(children):
            if child.type == "command" and self._source.text(child).split()[:1] == ["exit"]:
                children = children[: number + 1]  # bash does not read on
                break
        self._walk_all(children, _Context())

    # --- statements ---------------------------------------------------------------------

    def walk(self, node: Node, context: _Context) -> None:
        """Read a statement, or all statements in a node."""
        if handler := _HANDLERS.get(node.type):
            handler(self, node, context)
            return
        if node.type in _LOOPS:
            looped = node.type != "while_statement" and (context.certain or context.looped)
            context = replace(context, certain=False, looped=looped)
            if (name := node.child_by_field_name("variable")) is not None:
                unknown = Word(
                    text=f"${self._source.text(name)}", line=self._line(node), known=False
                )
                self._scope.assign(self._source.text(name), unknown, certain=False)
        elif node.type in _BRANCHES:
            context = replace(context, certain=False, looped=False)
        self._walk_all(node.children, context)

    def _walk_all(self, children: list[Node], context: _Context) -> None:
        for child, after in zip_longest(children, children[1:]):
            behind = after is not None and after.type == "&" and not context.background
            self.walk(child, replace(context, background=True) if behind else context)

    def _walk_comment(self, node: Node, _context: _Context) -> None:
        # The grammar includes the blank line before some comments.
        self._comments.append(
            (self._line(node), self._source.text(node), self._source.column(node.start_byte))
        )

    def _walk_function(self, node: Node, context: _Context) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        positional, self._scope.positional = self._scope.positional, None
        if body is not None:
            function = self._source.text(name) if name is not None else "?"
            self.walk(body, replace(context, function=function, certain=False, looped=False))
        self._scope.positional = positional

    def _walk_list(self, node: Node, context: _Context) -> None:
        """Read a && b || c: the commands after the first may not run."""
        for number, child in enumerate(node.children):
            certain = context.certain and number == 0
            self.walk(child, replace(context, certain=certain, looped=False))

    def _walk_pipeline(self, node: Node, context: _Context) -> None:
        parts = [child for child in node.children if child.is_named]
        names = [self._tree.program(part) for part in parts]
        for number, part in enumerate(parts):
            into = (*names[number + 1 : number + _LONGEST_PIPE], *context.piped_into)
            inner = replace(context, piped_into=into, certain=False, looped=False)
            self.walk(part, replace(inner, piped=context.piped or number > 0))

    def _walk_redirected(self, node: Node, context: _Context) -> None:
        body = node.child_by_field_name("body")
        heredoc, target = None, ""
        later: tuple[str, ...] = ()
        for redirect in redirects(node):
            if redirect.type == "heredoc_redirect":
                heredoc = self._words.heredoc(redirect) or heredoc
                self._suspect = self._suspect or self._tree.ends_indented(redirect)
                later = tuple(
                    self._tree.program(child)
                    for child in redirect.named_children
                    if child.type in ("pipeline", "command")
                )
            elif redirect.type == "file_redirect":
                target = self._target(redirect) or target
            for child in redirect.named_children:
                if child.type in ("pipeline", "list", "process_substitution", "command"):
                    self.walk(child, replace(context, piped=True))
        if heredoc and target and body is not None and self._tree.program(body) in ("cat", "tee"):
            self._written[target] = heredoc
        into = later + context.piped_into
        if body is not None:
            context = replace(context, stdin=heredoc or context.stdin, piped_into=into)
            self.walk(body, context)

    def _target(self, redirect: Node) -> str:
        target = redirect.child_by_field_name("destination")
        operator = redirect.children[0] if redirect.children else None
        if target is None or operator is None or operator.type not in (">", ">|"):
            return ""
        words = self._words.word(target)
        return words[0].text if words else ""

    def _walk_assignment(self, node: Node, context: _Context) -> None:
        if option := self._option(node):
            self._add(option, [], self._line(node), context)
        else:
            self._assign(node, context)

    def _option(self, node: Node) -> list[Word]:
        """Return --name=value as a word; the grammar takes it for an assignment."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or not self._source.text(name).startswith("-"):
            return []
        begin = Word(text=f"{self._source.text(name)}=", line=self._line(node))
        return [begin.joined(self._assigned(node, value))]

    def _assign(self, node: Node, context: _Context, *, lasting: bool = True) -> Assignment | None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or not NAME.fullmatch(self._source.text(name)):
            return None  # an element of an array
        word = self._assigned(node, value)
        adds = "+=" in [child.type for child in node.children]
        if value is not None and value.type == "array" and context.certain and not adds:
            items_of = (child for child in value.named_children if child.type != "comment")
            parts = [part for child in items_of for part in self._words.word(child)]
            items = tuple(p for part in parts for p in part.split())
            self._scope.arrays[self._source.text(name)] = items[:_LONGEST_ARRAY]
        else:
            self._scope.arrays.pop(self._source.text(name), None)
        if adds:
            word = self._scope.expand(self._source.text(name), word.line).joined(word)
        assignment = Assignment(
            name=self._source.text(name),
            value=word,
            path=self._path,
            line=self._line(node),
            where=self._where,
            certain=context.certain,
            array=value is not None and value.type == "array",
        )
        if lasting:
            self._scope.assign(assignment.name, word, certain=context.certain)
            self._assignments.append(assignment)
        return assignment

    def _assigned(self, node: Node, value: Node | None) -> Word:
        """Return the value of an assignment as one word."""
        parts = self._words.word(value) if value is not None else []
        word = parts[0] if parts else Word(text="", line=self._line(node))
        for part in parts[1:]:
            word = word.joined(part)
        return replace(word, known=False) if value is not None and value.type == "array" else word

    def _walk_declaration(self, node: Node, context: _Context) -> None:
        kind = node.children[0].type
        texts = map(self._source.text, node.children)
        flags = "".join(text for text in texts if text.startswith("-"))
        exports = kind == "export" and "f" not in flags and "n" not in flags
        exports = exports or (kind in ("declare", "typeset") and "x" in flags)
        for child in node.named_children:
            if child.type == "variable_assignment":
                assignment = self._assign(child, context)
                names = [assignment.name] if assignment else []
            else:
                names = (
                    [self._source.text(child)] if child.type in ("variable_name", "word") else []
                )
            if exports:
                self._exported.update(name for name in names if NAME.fullmatch(name))

    def _run(self, node: Node) -> list[Command]:
        """Read the commands in $(…)."""
        before = len(self._commands)
        for child in node.named_children:
            self.walk(child, _Context(certain=False, substituted=True))
        return self._commands[before:]

    # --- commands -----------------------------------------------------------------------

    def _walk_command(self, node: Node, context: _Context) -> None:
        name = node.child_by_field_name("name")
        own = []
        options: list[Word] = []
        begin = self._tree.begin(node)
        for child in node.children:
            if child.type == "variable_assignment":
                options += self._option(child)
                # The grammar joins a line of several assignments with the next command.
                lasting = name is None or child.start_byte < begin
                assignment = self._assign(child, context, lasting=lasting)
                if assignment and not lasting:
                    own.append(assignment)
        if name is None:
            return
        self._suspect = self._suspect or self._tree.spans_lines(node)
        words = options + [w for child in name.children for w in self._words.word(child)]
        if words := words + self._arguments(node):
            line = options[0].line if options else self._line(name)
            self._add(words, own, line, context, node.start_byte)

    def _add(
        self,
        words: list[Word],
        own: list[Assignment],
        line: int,
        context: _Context,
        start: int = 0,
    ) -> None:
        parts = (part for word in _evaluated(words) for part in word.split())
        most = _LONGEST_COMMAND if self._scope.spend(0, len(words)) else _FEW
        shown = tuple(islice(parts, most)) or tuple(words)
        self._scope.spend(0, len(shown))
        command = Command(
            words=shown,
            path=self._path,
            line=line,
            start=start,
            where=self._where,
            assignments=tuple(own),
            background=context.background,
            piped_into=context.piped_into,
            piped=context.piped,
            certain=context.certain,
            looped=context.looped,
            function=context.function,
            substituted=context.substituted,
            stdin=context.stdin,
            moment=self._scope.moment(),
        )
        self._commands.append(command)
        self._heed(command)

    def _arguments(self, node: Node) -> list[Word]:
        """Return the words after the name of a command.

        The grammar splits some words, such as a.$B.${C}. Parts without a space between them are one
        word, and a lone $ belongs to the name after it.
        """
        words: list[Word] = []
        end, dollar = -1, False
        for child in node.children:
            if child.type in _NO_WORDS or not (child.is_named or child.type == "$"):
                continue
            if child.type == "$":
                dollar, end = True, child.end_byte if child.start_byte == end else -1
                continue
            parts = self._words.word(child)
            if dollar and parts and (match := NAME.match(parts[0].text)):
                rest = replace(parts[0], text=parts[0].text[match.end() :])
                parts[0] = self._scope.expand(match[0], rest.line).joined(rest)
            if child.start_byte == end and words and parts:
                words[-1] = words[-1].joined(parts.pop(0))
            words += parts
            end, dollar = child.end_byte, False
        return words

    def _heed(self, command: Command) -> None:
        """Apply the effect of a command on the shell itself."""
        if command.name in _DECLARING:  # misread by the grammar, see above
            if command.name == "export":
                self._exported.update(w.text.partition("=")[0] for w in command.arguments)
        elif command.name == "set":
            texts = [word.text for word in command.arguments]
            if texts[:1] == ["--"]:
                self._scope.positional = command.arguments[1:]
            self._exports_all |= "allexport" in texts
            self._exports_all |= any(re.fullmatch(r"-[A-Za-z]*a[A-Za-z]*", one) for one in texts)

    def _line(self, node: Node) -> int:
        return self._source.line(node.start_byte)


_HANDLERS = {
    "comment": _Reader._walk_comment,  # noqa: SLF001
    "function_definition": _Reader._walk_function,  # noqa: SLF001
    "list": _Reader._walk_list,  # noqa: SLF001
    "pipeline": _Reader._walk_pipeline,  # noqa: SLF001
    "redirected_statement": _Reader._walk_redirected,  # noqa: SLF001
    "variable_assignment": _Reader._walk_assignment,  # noqa: SLF001
    "declaration_command": _Reader._walk_declaration,  # noqa: SLF001
    "command": _Reader._walk_command,  # noqa: SLF001
}
