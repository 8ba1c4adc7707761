"""E507: a training whose exit status the job does not show."""

import re
from collections.abc import Iterator
from dataclasses import replace

from tree_sitter import Node

from echelon.core.frozen import frozen
from echelon.lint.bash import Command, Shell
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, Severity, rule
from echelon.lint.script import Script
from echelon.lint.shell_options import ShellOptions
from echelon.lint.syntax_tree import parse_bash

_HANDLES = pattern(r"\b(?:exit|return|break|continue|kill|scancel|false)\b|\$\?|=")
"""Text after `||` that does something about a failure."""
_PRINTS = ("echo", "printf")
_READS_STATUS = pattern(r"\$\?|\bPIPESTATUS\b")
_EXITS_WITH_VARIABLE = pattern(r"\b(?:exit|return)\s+[\"']?\$|\bscancel\b|^\s*exec\s")
_STRICT_SHELL = pattern(r"sh\s+(?:-\w+\s+){0,3}-(?:\w*e\w*\b|o\s+(?:errexit|pipefail))")
"""A shell that another one starts with options for the status."""
_SEQUENCES = {"program", "do_group", "compound_statement", "subshell", "if_statement"}
_SEQUENCES |= {"elif_clause", "else_clause", "case_item"}
_NO_STATEMENTS = frozenset({"comment", "function_definition", "elif_clause", "else_clause"})
_LOOPS = frozenset({"for_statement", "c_style_for_statement", "while_statement"})
_TRANSPARENT = _LOOPS | {"redirected_statement", "case_statement", "pipeline", "list"}
"""Nodes that have the status of the command inside, unless a step below says otherwise."""
_WAIT = """\
pids+=($!)  # after each &
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done  # instead of wait"""
_MOST = 100
"""Maximum number of commands to follow in a script."""
_DEEPEST = 3
"""Maximum number of functions and waits to follow."""


@rule("E507", ERROR)
def lost_status(script: Script) -> Iterator[Hit]:
    """Exit status of a training that the job does not show.

    The exit status of a job is that of the last command in its script. After `echo`, `tee`,
    `|| true` or a `wait` without arguments it is 0 even if the training failed: the job is
    COMPLETED, and jobs that depend on its success start. `set -e -o pipefail` ends the script at
    the first failure. A background command that nothing waits for is killed when the script ends.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        +set -e -o pipefail
         python train.py    # <- here
         echo finished
    """
    # Other Python scripts beside these are mostly helpers, such as for the data.
    launches = [o.launch for o in script.started if o.launch.parallel]
    ranks = {id(c) for launch in launches for c in (launch.command, launch.inner)}
    for shell in script.shells if script.is_job else ():
        whole = shell is script.batch or script.files.read(shell.path) == shell.text
        handled = re.search(r"(?m)^\s*trap\b[^\n]*\bERR\b", shell.text)
        if shell.suspect or handled or (not whole and _STRICT_SHELL.search(script.text)):
            continue
        work = script.work_in(shell)
        options = ShellOptions(shell, script.files)
        flow = _Flow(shell, options, frozenset(c.start for c in work))
        for command in work[:_MOST]:
            loss = flow.follow(command, 0)
            if loss.what:
                severity = ADVICE if options.unclear else loss.severity
                leads = id(command) in ranks
                yield Hit(at=command, what=loss.what, fix=loss.fix, severity=severity, leads=leads)


@frozen
class _Loss:
    what: str
    """Empty if the script shows or handles the status."""
    fix: str
    severity: Severity = WARNING


_KEPT = _Loss(what="", fix="")


def _completed(reason: str, fix: str) -> _Loss:
    return _Loss(what=f"The job is COMPLETED even if this command fails: {reason}.", fix=fix)


class _Flow:
    """Follows the status of a command through the nodes that enclose it."""

    def __init__(self, shell: Shell, options: ShellOptions, work: frozenset[int]) -> None:
        tree = parse_bash(shell.text)
        self._shell, self._options, self._work = shell, options, work
        self._root, self._source = tree.root, tree.source

    def follow(self, command: Command, depth: int) -> _Loss:
        """Return how the status of a command is lost."""
        begin = command.start
        node: Node | None = self._root.descendant_for_byte_range(begin, begin)
        while node is not None and node.type != "command":
            node = node.parent
        stops, pending = self._options.has("errexit", begin), _KEPT
        while node is not None and (parent := node.parent) is not None:
            if parent.type in _LOOPS and not stops:
                what = "If this command fails, the loop continues, and the job may be COMPLETED."
                pending = _Loss(what=what, fix=self._fix(begin))
            found = self._step(node, parent, stops=stops, depth=depth)
            if found is not None:
                return found
            # `set -e` ignores all but the last command of a list.
            stops = stops and not (parent.type == "list" and node == parent.named_children[0])
            node = parent
        return pending

    def _step(self, node: Node, parent: Node, *, stops: bool, depth: int) -> _Loss | None:
        """Return what a node does to the status of a part of it; None if it has the same."""
        kind = parent.type
        if _is_condition(node, parent):
            return _KEPT  # the script tests it
        if kind == "pipeline" and node != parent.named_children[-1]:
            return self._in_pipe(parent)
        if kind == "list" and node == parent.named_children[0]:
            either = "||" in [child.type for child in parent.children]
            return self._alternative(parent.named_children[-1], node.start_byte) if either else None
        if kind == "function_definition":
            return self._follow_first(self._source.text(parent.named_children[0]), 0, depth)
        if kind in _SEQUENCES:
            behind = node.next_sibling is not None and node.next_sibling.type == "&"
            before = self._before(node, parent, stops=stops)
            return self._in_background(node, depth) if behind else before
        return None if kind in _TRANSPARENT else _KEPT

    def _in_pipe(self, pipe: Node) -> _Loss | None:
        if self._options.has("pipefail", pipe.start_byte):
            return None
        last = self._source.text(pipe.named_children[-1]).split()[0]
        return _completed(f"the pipe returns the status of {last}", self._fix(pipe.start_byte))

    def _alternative(self, other: Node, start: int) -> _Loss:
        """Return what `|| other` does to the status."""
        text = self._source.text(other)
        first = text.split()[0]
        if _HANDLES.search(text) or first not in (*_PRINTS, "true", ":"):
            return _KEPT
        meant = self._options.has("errexit", start)
        fix = f"remove `|| {first}`" if meant else f"remove `|| {first}`, and {self._fix(start)}"
        loss = _completed(f"`{first}` succeeds", fix)
        return replace(loss, severity=ADVICE) if meant else loss

    def _before(self, node: Node, parent: Node, *, stops: bool) -> _Loss | None:
        """Return what the statements after a statement do to its status."""
        statements = [n for n in parent.named_children if n.type not in _NO_STATEMENTS]
        at = statements.index(node) if node in statements else len(statements)
        texts = {n: self._source.text(n) for n in statements[at + 1 :]}
        later = [n for n, text in texts.items() if text != "exit"]  # it returns the status before
        first = texts[later[0]].split("\n", 1)[0] if later else ""
        handled = _READS_STATUS.search(first) and first.split()[0] not in _PRINTS
        if stops or handled or any(map(_EXITS_WITH_VARIABLE.search, texts.values())):
            return _KEPT
        if not later or parent.type == "do_group":
            return None  # the next round, or what is behind the loop, hides it
        last = later[-1]
        name, line = texts[last].split()[0].rstrip(";"), self._line(last)
        if name.startswith("-"):
            return _KEPT  # a broken continuation
        fix = self._fix(node.start_byte)
        if any(last.start_byte <= start < last.end_byte for start in self._work):
            what = f"If this command fails, the script continues, and line {line} decides "
            return _Loss(what=f"{what}whether the job is COMPLETED.", fix=fix)
        shown = "`exit 0`" if name == "exit" else name
        return _completed(f"{shown} (line {line}) comes after it", fix)

    def _in_background(self, node: Node, depth: int) -> _Loss:
        after = [c for c in self._shell.commands if c.start > node.start_byte]
        waits = [c for c in after if c.name == "wait"]
        named = [c for c in waits if len(c.words) > 1]
        if named:
            certain = named[0].certain  # a loop of waits may look at each status
            return self._follow_first("wait", node.start_byte, depth) if certain else _KEPT
        if waits:
            return _completed(f"`wait` (line {waits[-1].line}) returns 0", _WAIT)
        if after[1:] or re.search(r"\b(?:wait|sleep|tail|while|until)\b", self._shell.text):
            return _KEPT
        what = "Nothing waits for this command, and Slurm kills it when the script ends."
        return _Loss(what=what, severity=ERROR, fix=_WAIT)

    def _follow_first(self, name: str, start: int, depth: int) -> _Loss:
        """Return how the status of the first command with a name is lost."""
        called = [c for c in self._shell.commands if c.name == name and c.start > start]
        return self.follow(called[0], depth + 1) if called and depth < _DEEPEST else _KEPT

    def _fix(self, at: int) -> str:
        missing = "" if self._options.has("errexit", at) else " -e"
        missing += "" if self._options.has("pipefail", at) else " -o pipefail"
        before = "# before the first command, or handle the failure"
        return f"set{missing}  {before}" if missing else "… || exit 1  # behind this command"

    def _line(self, node: Node) -> int:
        first = self._shell.commands[0]
        return self._source.line(node.start_byte) + first.line - self._source.line(first.start)


def _is_condition(node: Node, parent: Node) -> bool:
    tests = parent.type in ("if_statement", "elif_clause", "while_statement")
    return parent.type == "negated_command" or (tests and node == parent.named_children[0])
