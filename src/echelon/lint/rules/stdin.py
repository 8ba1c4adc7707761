"""E216: steps that read the file of a loop."""

from collections.abc import Iterator

from tree_sitter import Node

from echelon.lint.rule import ERROR, Hit, rule
from echelon.lint.script import Script
from echelon.lint.syntax_tree import parse_bash


@rule("E216", ERROR)
def shared_stdin(script: Script) -> Iterator[Hit]:
    """srun that reads the input of a loop.

    srun passes its standard input to the first task. In a `while read` loop, that is the rest of
    the file, so the loop ends after the first line.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         while read seed; do
        -    srun python train.py --seed "$seed" || exit 1    # <- here
        +    srun python train.py --seed "$seed" < /dev/null || exit 1
         done < seeds.txt
    """
    if not any("while" in shell.text for shell in script.shells):
        return
    shells = {id(command): shell for shell in script.shells for command in shell.commands}
    for command, options, _ in script.sruns:
        shell = shells[id(command)]
        if "input" in options or command.background or command.piped:
            continue
        node = parse_bash(shell.text).root.descendant_for_byte_range(command.start, command.start)
        if _reads_in_loop(node, shell.text.encode()):
            yield Hit(
                at=command,
                what="srun reads the rest of the loop's input, so the loop ends after the first "
                "line.",
                fix="srun … < /dev/null",
            )


def _reads_in_loop(node: Node | None, text: bytes) -> bool:
    """Tell whether a command has the standard input of a `while read` loop around it."""
    while node is not None:
        if node.type == "redirected_statement" and b"<" in _own_redirects(node, text):
            return False
        if node.type == "while_statement":
            body = node.child_by_field_name("body")
            tested = text[node.start_byte : body.start_byte if body else node.end_byte]
            return b"read" in tested.split() and not {b"-u", b"<"} & set(
                tested.replace(b"<", b" < ").split()
            )
        node = node.parent
    return False


def _own_redirects(node: Node, text: bytes) -> bytes:
    found = node.children_by_field_name("redirect")
    return text[found[0].start_byte : found[-1].end_byte] if found else b""
