"""E513: statuses that are not those of the command before."""

from collections.abc import Iterator

from echelon.lint.bash import Shell
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script
from echelon.lint.shell_options import ShellOptions
from echelon.lint.syntax_tree import parse_bash

_BEHIND_ANOTHER = pattern(r"^[^#\n]*\"[^\"\n]*\$\((?!\()[^)\n]*\)[^\"\n]*\$\?")
_KEEPS = pattern(r"(?:export )?(\w+)=\"?\$\?\"?")
_ONE_STATEMENT = frozenset({"command_name", "command", "redirected_statement"})
_SEQUENCES = frozenset({"program", "do_group", "compound_statement", "subshell"})
_LONGEST = 2000
"""Longer lines were not written by a person."""


@rule("E513", WARNING)
def read_status(script: Script) -> Iterator[Hit]:
    """`$?` that is always 0.

    `$?` is the status of the last command, and that includes `$(…)` in the same line. After
    `set -e`, the script ends where a command fails, so the next line only runs if it succeeded.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         set -e
        -python train.py
        -status=$?    # <- here
        +status=0
        +python train.py || status=$?
         cp log.txt last.txt
         exit $status
    """
    shell = script.batch
    if shell is None or shell.suspect or not script.is_job or "$?" not in shell.text:
        return
    for number, line in enumerate(script.lines, 1):
        if _BEHIND_ANOTHER.match(line[:_LONGEST]):
            yield Hit(
                at=Place(shell.path, number),
                what="This `$?` is the status of `$(…)` before it in the same line.",
                fix="status=$?  # directly after the command, then $status in this line",
            )
    options = ShellOptions(shell, script.files)
    for command in script.work_in(shell):
        name = _keeps_status(shell, command.start)
        if name and options.has("errexit", command.start) and not command.function:
            yield Hit(
                at=Place(shell.path, name[1]),
                what=f"`{name[0]}` is always 0: after `set -e`, the script ends where the command "
                "before this line fails.",
                fix=f"{name[0]}=0\n… || {name[0]}=$?  # behind the command",
            )


def _keeps_status(shell: Shell, start: int) -> tuple[str, int] | None:
    """Return the variable that the statement after a command sets to `$?`, and its line."""
    tree = parse_bash(shell.text)
    node = tree.root.descendant_for_byte_range(start, start)
    while node is not None and node.parent is not None and node.parent.type in _ONE_STATEMENT:
        node = node.parent
    sequence = node is not None and node.parent is not None and node.parent.type in _SEQUENCES
    after = node.next_named_sibling if node is not None and sequence else None
    found = _KEEPS.fullmatch(tree.source.text(after)) if after is not None else None
    return (found[1], tree.source.line(after.start_byte)) if after and found else None
