"""What the exit status of a bash script is if one of its commands fails. Pure.

The script is executed on its syntax tree: one command fails, and all others succeed. A condition
that does not depend on the failure is both true and false, so there may be several ends. Nothing
is claimed about a script with a construct that is not understood.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest

from tree_sitter import Node

from echelon.core.frozen import frozen
from echelon.lint.patterns import pattern
from echelon.lint.reading import Tree, parse_bash, spans_lines
from echelon.lint.source import Source

_MOST_STATES = 32
_MOST_STEPS = 20_000
_DEEPEST = 12
_TESTS = frozenset({"grep", "command", "which", "type", "pgrep", "diff", "cmp", "kill", "hash"})
"""Programs whose failure is an answer."""
_ENDS_SCRIPT = frozenset({"kill", "scancel", "scontrol"})
_OWN = pattern(r"\$\$|\$\{?(?:BASHPID|SLURM_(?:ARRAY_)?JOB_?ID)\b")
"""The script itself, or its job."""
_QUOTES = "\"'"
_STATUS = r"\"?\$(?:\?|\{?([A-Za-z_]\w*)(?::-(\d+))?\}?)\"?"
_COMPARES = pattern(
    rf"^(?:\[\[?|\(\(|test)\s+{_STATUS}\s*(-eq|-ne|-gt|-ge|-lt|==|=|!=|>|<)\s*\"?(\d+)\"?\s*(?:\]\]?|\)\)|$)"
)
_BARE = pattern(r"^\(\(\s*(!?)\s*(?:\$\{?)?([A-Za-z_]\w*|\?)\}?\s*\)\)$")
_VALUE = pattern(r"^\"?\$(?:(\?)|\{?([A-Za-z_]\w*)(?::?-(\d+))?\}?|\{PIPESTATUS\[(\d+)\]\})\"?$")
_CHANGES = pattern(
    r"(?<!\w)([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%|&^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
"""Variables that an arithmetic expression changes."""
_READERS = frozenset({"let", "read", "mapfile", "readarray", "printf", "getopts"})
"""Builtins that set variables."""
_ENDS = pattern(r"\b(?:exit|return)\b")
_LOOKED_AT = pattern(r"(?:\b(?:exit|return|test)|\[\[?|\(\(\s*!?)\s*\"?\$?\{?([A-Za-z_]\w*)")
"""Variables on which the end of a script may depend."""
_OPERATIONS: dict[str, Callable[[int, int], bool]] = {
    **dict.fromkeys(("-eq", "==", "="), lambda a, b: a == b),
    **dict.fromkeys(("-ne", "!="), lambda a, b: a != b),
    **dict.fromkeys(("-gt", ">"), lambda a, b: a > b),
    **dict.fromkeys(("-lt", "<"), lambda a, b: a < b),
    "-ge": lambda a, b: a >= b,
}


@frozen
class Ending:
    """How a script ends after a command has failed."""

    succeeds: bool
    """Its status is 0."""
    line: int
    """The line of the command whose status it has."""
    handled: bool
    """A condition or an alternative, such as `|| true`, has looked at the failure."""
    lost_in: str
    """What replaced the status first: `|`, `&`, `wait`, or empty for a later command."""


@dataclass(slots=True)
class _Script:
    """A parsed script, for all of its commands."""

    tree: Tree
    looked_at: frozenset[str]
    """Variables on which its end may depend."""
    words: dict[int, list[str]] = field(default_factory=dict)
    """The words of its commands, by the identifiers of their nodes."""
    handlers: dict[str, Tree] = field(default_factory=dict)
    """The handlers of its traps, which are kept because identifiers are addresses."""


@lru_cache(maxsize=4)
def _read(text: str) -> _Script:
    return _Script(tree=parse_bash(text), looked_at=frozenset(_LOOKED_AT.findall(text)))


class _UnclearError(Exception):
    """The script has a construct that is not understood."""


@dataclass(slots=True)
class _State:
    status: int | None = 0
    """The value of `$?`; None if it is unknown."""
    line: int = 0
    flow: str = ""
    """Why the next command does not run: exit, return, break or continue."""
    errexit: bool = False
    pipefail: bool = False
    errtrace: bool = False
    failed: bool = False
    """The command has run, and has failed."""
    handled: bool = False
    lost_in: str = ""
    job: int | None = 0
    """The status of the last command in the background."""
    values: Mapping[str, int | None] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """The lines of the commands whose statuses are in variables."""
    jobs: Mapping[str, int | None] = field(default_factory=dict)
    """The statuses that `wait $NAME` returns."""
    parts: tuple[int | None, ...] = ()
    """PIPESTATUS."""
    traps: Mapping[str, str] = field(default_factory=dict)

    def copy(self, **changes: object) -> "_State":
        made = _State(
            self.status,
            self.line,
            self.flow,
            self.errexit,
            self.pipefail,
            self.errtrace,
            self.failed,
            self.handled,
            self.lost_in,
            self.job,
            self.values,
            self.lines,
            self.jobs,
            self.parts,
            self.traps,
        )  # the copy module takes ten times as long
        for name, value in changes.items():
            setattr(made, name, value)
        return made


@lru_cache(maxsize=64)
def endings(text: str, line: int, name: str, *, once: bool = False) -> tuple[Ending, ...] | None:
    """Return all ends of a script in which a command has failed; None if that is unclear.

    Args:
        text: the script.
        line: the line of the command.
        name: its first word.
        once: it fails the first time only, as in a loop.
    """
    script = _read(text)
    if script.tree.root.has_error:
        return None
    interpreter = _Interpreter(script, line, name, once=once)
    start = _State(errexit=begins_with_errexit(text))
    try:
        ends = [
            end
            for state in interpreter.run_all(script.tree.root.children, [start])
            for end in interpreter.leave(state)
        ]
    except (_UnclearError, RecursionError):
        return None
    ends = [state for state in ends if state.failed]
    if not ends or any(state.status is None for state in ends):
        return None
    return tuple(
        Ending(
            succeeds=state.status == 0,
            line=state.line,
            handled=state.handled,
            lost_in=state.lost_in,
        )
        for state in ends
    )


def begins_with_errexit(text: str) -> bool:
    """Tell whether the first line of a script starts bash with `-e`."""
    return bool(re.match(r"#!.*\s-\w*e", text))


class _Interpreter:
    def __init__(self, script: _Script, line: int, name: str, *, once: bool) -> None:
        self._script, self._source = script, script.tree.source
        self._line, self._name, self._once = line, name, once
        self._functions: dict[str, tuple[Node, Source]] = {}
        """With their sources, because a trap may call them."""
        self._steps = 0
        self._depth = 0

    def run_all(
        self, nodes: Sequence[Node], states: list[_State], *, guard: bool = False
    ) -> list[_State]:
        for node, after in zip_longest(nodes, nodes[1:]):
            background = after is not None and after.type == "&"
            if node.is_named and node.type != "comment":
                states = self._each(node, states, guard=guard, background=background)
        return states

    def _each(
        self, node: Node, states: list[_State], *, guard: bool, background: bool = False
    ) -> list[_State]:
        found: list[_State] = []
        for state in states:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise _UnclearError
            if state.flow:
                found.append(state)
            elif background:
                found += self._start(node, state)
            else:
                found += self._run(node, state, guard=guard)
        return _merged(found)

    def _start(self, node: Node, state: _State) -> Iterator[_State]:
        """Run a command in the background."""
        for end in self._run(node, state.copy(errexit=False), guard=True):
            lost_in = "&" if end.failed and not state.failed else state.lost_in
            yield state.copy(
                status=0, line=self._row(node), job=end.status, failed=end.failed, lost_in=lost_in
            )

    def _run(self, node: Node, state: _State, *, guard: bool) -> list[_State]:
        handler = _HANDLERS.get(node.type)
        if handler is None:
            raise _UnclearError
        return list(handler(self, node, state, guard))

    # --- compound commands --------------------------------------------------------------

    def _list(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        parts = [child for child in node.children if child.is_named]
        if len(parts) != 2:
            raise _UnclearError
        wanted = "&&" if any(child.type == "&&" for child in node.children) else "||"
        lefts = self._each(parts[0], [state], guard=True)
        if wanted == "||" and state.failed and _ENDS.search(self._text(parts[1])):
            # What is checked may depend on the command that has failed.
            lefts += [left.copy(status=1) for left in lefts if left.status == 0 and not left.flow]
        for left in lefts:
            runs = left.status == 0 if wanted == "&&" else left.status != 0
            # A failure on the left of && is an exception to `set -e`, and may be meant as one.
            looks = wanted == "||" or state.errexit
            left.handled = left.handled or (looks and left.status != 0 and _notices(state, left))
            if left.flow or not runs:
                yield left
            else:
                yield from self._each(parts[1], [left], guard=guard)

    def _negated(self, node: Node, state: _State, _guard: bool) -> Iterator[_State]:
        for end in self.run_all(node.children, [state], guard=True):
            if not end.flow:
                end.handled = end.handled or _notices(state, end)
                end.status = None if end.status is None else int(end.status == 0)
            yield end

    def _pipeline(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        parts = [child for child in node.children if child.is_named]
        statuses: list[int | None] = []
        failed, pipefail = state.failed, state.pipefail
        for part in parts:
            ends = self._each(part, [_in_subshell(state).copy(failed=failed)], guard=guard)
            if not ends:
                raise _UnclearError
            if len({end.status for end in ends}) != 1:
                ends = ends[:1]
            statuses.append(ends[0].status)
            failed = failed or any(end.failed for end in ends)
        status = statuses[-1]
        if pipefail:
            status = next((one for one in reversed(statuses) if one != 0), 0)
        end = state.copy(
            status=status, line=self._row(parts[-1]), failed=failed, parts=tuple(statuses)
        )
        if failed and not state.failed and status == 0:
            end.lost_in = end.lost_in or "|"
        yield from self._checked(end, guard=guard)

    def _subshell(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        for end in self.run_all(node.children, [_in_subshell(state)], guard=guard):
            back = state.copy(
                status=end.status,
                line=self._row(node),
                failed=end.failed,
                handled=end.handled,
                lost_in=end.lost_in,
            )
            yield from self._checked(back, guard=guard)

    def _group(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        if node.children and node.children[0].type == "((":
            yield from self._test(node, state, guard)
        else:
            yield from self.run_all(node.children, [state], guard=guard)

    def _redirected(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        body = node.child_by_field_name("body")
        if body is None:
            yield state.copy(status=0, line=self._row(node))
            return
        behind = [
            child
            for redirect in node.children
            if redirect.type == "heredoc_redirect"
            for child in redirect.named_children
            if child.type in ("pipeline", "list", "command")
        ]
        if behind:  # the grammar puts what follows `<<EOF` into the redirection
            raise _UnclearError
        yield from self._run(body, state, guard=guard)

    def _if(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        yield from self._branches(node.children, state, guard)

    def _branches(self, children: list[Node], state: _State, guard: bool) -> Iterator[_State]:
        kinds = [child.type for child in children]
        then = kinds.index("then")
        rest = next((n for n, kind in enumerate(kinds) if kind in _ELSE), len(kinds))
        for tested in self.run_all(children[:then], [state], guard=True):
            if tested.flow:
                yield tested
                continue
            tested.handled = tested.handled or _notices(state, tested)
            if tested.status == 0:
                yield from self.run_all(children[then + 1 : rest], [tested], guard=guard)
                continue
            if rest == len(kinds) or kinds[rest] == "fi":
                yield tested.copy(status=0)
            elif kinds[rest] == "else_clause":
                yield from self.run_all(children[rest].children, [tested], guard=guard)
            else:
                clause = [*children[rest].children, *children[rest + 1 :]]
                yield from self._branches(clause, tested, guard)

    def _case(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        yield state.copy(status=0)
        for item in node.named_children:
            if item.type == "case_item":
                kinds = [child.type for child in item.children]
                start = kinds.index(")") + 1 if ")" in kinds else 0
                yield from self.run_all(item.children[start:], [state.copy()], guard=guard)

    def _for(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        body = node.child_by_field_name("body")
        if body is None:
            raise _UnclearError
        variable = node.child_by_field_name("variable")
        begun = state.copy()
        if variable is not None:
            name = self._text(variable)
            begun.values = {**begun.values, name: None}
            over = " ".join(self._text(child) for child in node.named_children[1:-1])
            found = [key for key in begun.jobs if re.search(rf"\$\{{?!?{re.escape(key)}\b", over)]
            job = begun.jobs[found[0]] if found else None
            begun.jobs = {**begun.jobs, name: job}
        states = [begun]
        for _ in range(2 if self._once else 1):
            states = self._failed_first(self._each(body, states, guard=guard))
        yield from map(_left, states)

    def _while(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        body = node.child_by_field_name("body")
        conditions = node.children[1 : node.children.index(body)] if body in node.children else []
        if body is None or node.children[0].type == "until":
            raise _UnclearError
        text = " ".join(map(self._text, conditions)).rstrip("; ")
        forever = text in ("true", ":", "[ 1 ]", "((1))", "(( 1 ))", "[ true ]")
        states = [state]
        for _ in range(2 if self._once else 1):
            tested = self.run_all(conditions, states, guard=True)
            inside = [end for end in tested if end.status == 0 or end.flow]
            if not inside:
                states = [
                    end.copy(status=0, handled=end.handled or _notices(state, end))
                    for end in tested
                ]
                break
            if forever and any(not end.flow for end in self._each(body, inside, guard=guard)):
                raise _UnclearError
            states = self._failed_first(self._each(body, inside, guard=guard))
        yield from map(_left, states)

    def _failed_first(self, states: list[_State]) -> list[_State]:
        """Return the states before the next round; if the command is in the loop, it has failed."""
        failed = [state for state in states if state.failed] if self._once else []
        for state in failed or states:
            state.flow = "" if state.flow == "continue" else state.flow
        return failed or states

    def _do(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        yield from self.run_all(node.children, [state], guard=guard)

    def _function(self, node: Node, state: _State, _guard: bool) -> Iterator[_State]:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self._text(name)] = (body, self._source)
        yield state.copy(status=0, line=self._row(node))

    # --- assignments and tests ----------------------------------------------------------

    def _assignments(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        yield from self.run_all(node.children, [state], guard=guard)

    def _assignment(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        key = self._text(name) if name is not None else ""
        text = self._text(value) if value is not None else ""
        adds = any(child.type == "+=" for child in node.children)
        for end in self._substitutions(node, state):
            substituted = end is not state and "$(" in text
            made = end.copy(line=self._row(node), status=end.status if substituted else 0)
            if re.search(r"\$\{?!", text):
                before = made.jobs.get(key) if adds else 0
                made.jobs = {**made.jobs, key: before or made.job}
            elif key in self._script.looked_at:
                value_of = None if adds else self._value(text, state)
                made.values = {**made.values, key: value_of}
                made.lines = {**made.lines, key: state.line if "$" in text else self._row(node)}
            yield from self._checked(made, guard=guard)

    def _declaration(self, node: Node, state: _State, _guard: bool) -> Iterator[_State]:
        states = [state]
        for child in node.named_children:
            if child.type == "variable_assignment":
                states = [e for s in states for e in self._assignment(child, s, True)]
        for end in states:
            yield end.copy(status=0, line=self._row(node)) if not end.flow else end

    def _substitutions(self, node: Node, state: _State) -> Iterator[_State]:
        """Run the commands in $(…) of a node, which are in its own words."""
        if not self._is_near(node):
            yield state
            return
        inner = [child for child in _below(node) if child.type == "command_substitution"]
        target = [one for one in inner if self._contains(one)]
        if not target:
            yield state
            return
        for end in self.run_all(target[0].children, [_in_subshell(state)], guard=False):
            yield state.copy(status=end.status, failed=end.failed, handled=end.handled)

    def _is_near(self, node: Node) -> bool:
        return self._row(node) <= self._line <= self._source.line(node.end_byte)

    def _row(self, node: Node) -> int:
        return self._source.line(node.start_byte)

    def _text(self, node: Node) -> str:
        return self._source.text(node)

    def _read_words(self, command: Node) -> list[str]:
        """Return the words of a command as written."""
        if spans_lines(command, self._source):
            raise _UnclearError
        return [
            self._text(child)
            for child in command.named_children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect")
        ]

    def _contains(self, node: Node) -> bool:
        return self._is_near(node) and self._name in self._text(node)

    def _value(self, text: str, state: _State) -> int | None:
        """Return the number that a word stands for."""
        bare = text.strip(_QUOTES)
        if re.fullmatch(r"[0-9]{1,4}", bare):
            return int(bare)
        found = _VALUE.match(text)
        if found is None:
            return None
        if found[1]:
            return state.status
        if found[4]:
            parts = state.parts or (state.status,)
            return parts[int(found[4])] if int(found[4]) < len(parts) else 0
        default = int(found[3]) if found[3] else None
        return state.values.get(found[2], default)

    def _test(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        text = " ".join(self._text(node).split())
        answer: bool | None = None
        if found := _COMPARES.match(text):
            default = int(found[2]) if found[2] else None
            value = state.values.get(found[1], default) if found[1] else state.status
            if value is not None:
                answer = _OPERATIONS[found[3]](value, int(found[4]))
        elif found := _BARE.match(text):
            value = state.status if found[2] == "?" else state.values.get(found[2])
            answer = None if value is None else bool(value) != bool(found[1])
        looked = answer is not None and state.failed
        changed = {one or other for one, other in _CHANGES.findall(text)}
        state = _forget(state, changed) if text.startswith("((") else state
        for true in (True, False) if answer is None else (answer,):
            end = state.copy(status=int(not true), line=self._row(node))
            end.handled = end.handled or looked
            yield from self._checked(end, guard=guard)

    # --- simple commands ----------------------------------------------------------------

    def _command(self, node: Node, state: _State, guard: bool) -> Iterator[_State]:
        words = self._script.words.get(node.id)
        if words is None:
            words = self._script.words[node.id] = self._read_words(node)
        name = words[0].strip(_QUOTES).rpartition("/")[2] if words else ""
        line = self._row(node)
        if self._is_wanted(node, words):
            if name == "find":  # which succeeds whatever `-exec` does
                raise _UnclearError
            fails = not (self._once and state.failed)
            end = state.copy(status=int(fails), line=line, failed=True)
            if name == "exec":
                end.flow = "exit"
            yield from self._checked(end, guard=guard)
            return
        for made in self._substitutions(node, state):
            yield from self._other(node, made, words, guard)

    def _other(self, node: Node, state: _State, words: list[str], guard: bool) -> Iterator[_State]:
        """Run a command that is not the one that fails."""
        name = words[0].strip(_QUOTES).rpartition("/")[2] if words else ""
        line = self._row(node)
        if name in _ENDS_SCRIPT and any(_OWN.search(word) for word in words):
            raise _UnclearError
        if (name == "sleep" and "infinity" in words) or (name == "tail" and _follows(words)):
            yield state.copy(status=1, line=line, flow="exit")  # at the time limit
        elif builtin := _BUILTINS.get(name):
            yield from builtin(self, state, words, line, guard)
        elif name in self._functions:
            yield from self._call(name, state, guard)
        elif name == "test":
            yield from self._test(node, state, guard)
        elif name in _READERS:
            changed = set(re.findall(r"[A-Za-z_]\w*", " ".join(words[1:])))
            yield _forget(state, changed).copy(status=0, line=line)
        else:
            yield state.copy(status=0, line=line)
            if name in _TESTS and guard:
                yield state.copy(status=1, line=line)

    def _is_wanted(self, node: Node, words: list[str]) -> bool:
        """Tell whether this is the command; one in $(…) of its words comes first."""
        if not self._is_near(node):
            return False
        bare = [word.strip(_QUOTES).rpartition("/")[2] for word in words[:6]]
        inner = any(
            child.type == "command_substitution" and self._contains(child) for child in _below(node)
        )
        # Lint has expanded the words of the command.
        expanded = bare[:1] == ["eval"] or (words[:1] and words[0].strip(_QUOTES)[:1] == "$")
        return bool(expanded or self._name in bare) and not inner

    def _call(self, name: str, state: _State, guard: bool) -> Iterator[_State]:
        if self._depth > _DEEPEST:
            raise _UnclearError
        self._depth += 1
        trap = state.traps.get("ERR", "")
        inside = (
            state
            if state.errtrace or not trap
            else state.copy(traps={key: text for key, text in state.traps.items() if key != "ERR"})
        )
        body, source = self._functions[name]
        before, self._source = self._source, source
        ends = self._each(body, [inside], guard=guard)
        self._source = before
        for end in ends:
            if trap and "ERR" not in end.traps:
                end.traps = {**end.traps, "ERR": trap}
            end.flow = "" if end.flow == "return" else end.flow
            yield from self._checked(end, guard=guard)
        self._depth -= 1

    def _checked(self, state: _State, *, guard: bool) -> Iterator[_State]:
        """Apply `set -e` and the trap of ERR to a command that has failed."""
        if state.status in (0, None) or guard or state.flow:
            yield state
            return
        ends = [state]
        if "ERR" in state.traps:
            ends = self._handle(state, "ERR")
        for end in ends:
            yield end.copy(flow="exit") if end.errexit and not end.flow else end

    def _handle(self, state: _State, signal: str) -> list[_State]:
        """Run the handler of a trap. The status remains, unless it exits."""
        text = state.traps[signal]
        begun = state.copy(flow="", traps={})
        handler = self._script.handlers.setdefault(text, parse_bash(text))
        before, self._source = self._source, handler.source
        ends = self.run_all(handler.root.children, [begun], guard=True)
        self._source = before
        return [
            end
            if end.flow == "exit"
            else state.copy(traps={k: v for k, v in state.traps.items() if k != signal})
            for end in ends
        ]

    def leave(self, state: _State) -> list[_State]:
        """Return the states after the trap of EXIT."""
        return self._handle(state, "EXIT") if "EXIT" in state.traps else [state]

    # --- builtins -----------------------------------------------------------------------

    def _exit(
        self, state: _State, words: list[str], line: int, _guard: bool, flow: str = "exit"
    ) -> Iterator[_State]:
        status = self._value(words[1], state) if len(words) > 1 else state.status
        found = _VALUE.match(words[1]) if len(words) > 1 else None
        if len(words) == 1 or (found and found[1]):
            line = state.line
        elif found:
            line = state.lines.get(found[2] or "", line)
        yield state.copy(status=status, line=line, flow=flow)

    def _return(self, state: _State, words: list[str], line: int, guard: bool) -> Iterator[_State]:
        yield from self._exit(state, words, line, guard, flow="return")

    def _break(self, state: _State, words: list[str], line: int, _guard: bool) -> Iterator[_State]:
        yield state.copy(status=0, line=line, flow=words[0])

    def _set(self, state: _State, words: list[str], line: int, _guard: bool) -> Iterator[_State]:
        end = state.copy(status=0, line=line)
        rest = words[1:]
        while rest and rest[0][:1] in ("-", "+") and rest[0] not in ("-", "--"):
            word = rest.pop(0)
            on, letters = word[:1] == "-", set(word[1:])
            option = rest.pop(0) if word.endswith("o") and rest else ""
            if "e" in letters or option == "errexit":
                end.errexit = on
            if "E" in letters or option == "errtrace":
                end.errtrace = on
            if option == "pipefail":
                end.pipefail = on
        yield end

    def _wait(self, state: _State, words: list[str], line: int, guard: bool) -> Iterator[_State]:
        target = words[1] if len(words) > 1 else ""
        status: int | None = 0
        if target.startswith("-"):
            status = None
        elif re.fullmatch(r"\"?\$\{?!\}?\"?", target):
            status = state.job
        elif target:
            name = re.sub(r"[\"${}\[@*\]]", "", target)
            status = state.jobs.get(name)
        end = state.copy(status=status, line=line)
        if state.lost_in == "&" and (not target or status):
            end.lost_in = "" if target else "wait"
        yield from self._checked(end, guard=guard)

    def _trap(self, state: _State, words: list[str], line: int, _guard: bool) -> Iterator[_State]:
        end = state.copy(status=0, line=line)
        handler = words[1].strip(_QUOTES) if len(words) > 1 else ""
        for signal in words[2:]:
            if signal.upper() in ("EXIT", "0", "ERR"):
                key = "ERR" if signal.upper() == "ERR" else "EXIT"
                end.traps = {**end.traps, key: "" if handler == "-" else handler}
        yield end

    def _exec(self, state: _State, words: list[str], line: int, _guard: bool) -> Iterator[_State]:
        yield state.copy(status=0, line=line, flow="exit" if len(words) > 1 else "")

    def _false(self, state: _State, _words: list[str], line: int, guard: bool) -> Iterator[_State]:
        yield from self._checked(state.copy(status=1, line=line), guard=guard)


_ELSE = ("elif_clause", "else_clause", "fi")
_Handler = Callable[[_Interpreter, Node, _State, bool], Iterator[_State]]
_Builtin = Callable[[_Interpreter, _State, list[str], int, bool], Iterator[_State]]
_HANDLERS: dict[str, _Handler] = {
    "list": _Interpreter._list,  # noqa: SLF001
    "negated_command": _Interpreter._negated,  # noqa: SLF001
    "pipeline": _Interpreter._pipeline,  # noqa: SLF001
    "subshell": _Interpreter._subshell,  # noqa: SLF001
    "compound_statement": _Interpreter._group,  # noqa: SLF001
    "redirected_statement": _Interpreter._redirected,  # noqa: SLF001
    "if_statement": _Interpreter._if,  # noqa: SLF001
    "case_statement": _Interpreter._case,  # noqa: SLF001
    "for_statement": _Interpreter._for,  # noqa: SLF001
    "c_style_for_statement": _Interpreter._for,  # noqa: SLF001
    "while_statement": _Interpreter._while,  # noqa: SLF001
    "do_group": _Interpreter._do,  # noqa: SLF001
    "function_definition": _Interpreter._function,  # noqa: SLF001
    "variable_assignments": _Interpreter._assignments,  # noqa: SLF001
    "variable_assignment": _Interpreter._assignment,  # noqa: SLF001
    "declaration_command": _Interpreter._declaration,  # noqa: SLF001
    "unset_command": _Interpreter._declaration,  # noqa: SLF001
    "test_command": _Interpreter._test,  # noqa: SLF001
    "command": _Interpreter._command,  # noqa: SLF001
}
_BUILTINS: dict[str, _Builtin] = {
    "exit": _Interpreter._exit,  # noqa: SLF001
    "return": _Interpreter._return,  # noqa: SLF001
    "break": _Interpreter._break,  # noqa: SLF001
    "continue": _Interpreter._break,  # noqa: SLF001
    "set": _Interpreter._set,  # noqa: SLF001
    "wait": _Interpreter._wait,  # noqa: SLF001
    "trap": _Interpreter._trap,  # noqa: SLF001
    "exec": _Interpreter._exec,  # noqa: SLF001
    "false": _Interpreter._false,  # noqa: SLF001
}


def _follows(words: list[str]) -> bool:
    """Tell whether tail runs until something ends it."""
    options = [word for word in words if word[:1] == "-"]
    follows = any(re.match(r"-\w*[fF]|--follow", option) for option in options)
    return follows and not any(option.startswith("--pid") for option in options)


def _forget(state: _State, names: set[str]) -> _State:
    """Return a state in which the values of some variables are unknown."""
    known = {name: None if name in names else value for name, value in state.values.items()}
    return state.copy(values={**known, **dict.fromkeys(names)})


def _in_subshell(state: _State) -> _State:
    """Return the state in a subshell, which has no traps; with `set -E`, it has that of ERR."""
    kept = {"ERR"} if state.errtrace else set()
    return state.copy(traps={key: text for key, text in state.traps.items() if key in kept})


def _notices(before: _State, after: _State) -> bool:
    """Tell whether a condition has the failure as its status, also by `wait`."""
    waited = before.lost_in == "&" and not after.lost_in
    return after.failed and (waited or not before.failed)


def _left(state: _State) -> _State:
    """Return the state behind a loop."""
    return state.copy(flow="") if state.flow in ("break", "continue") else state


def _merged(states: list[_State]) -> list[_State]:
    """Leave out equal states. The last line matters only after the failure."""
    found: list[_State] = []
    for state in (one if one.failed else one.copy(line=0) for one in states):
        if state not in found:
            found.append(state)
    if len(found) > _MOST_STATES:
        raise _UnclearError
    return found


def _below(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        yield child
        yield from _below(child)
