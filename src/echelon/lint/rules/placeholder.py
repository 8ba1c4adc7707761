"""E116: values that are still to be filled in."""

from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.placeholders import is_placeholder, placeholder_in
from echelon.lint.rule import ADVICE, Hit, Located, rule
from echelon.lint.script import Script

_PRINTS = frozenset({"echo", "printf", "cat", "grep", "sed", "awk"})
_MOST = 3


@rule("E116", ADVICE)
def placeholder(script: Script) -> Iterator[Hit]:
    """Value that is still a placeholder.

    Example scripts use placeholders for values that depend on the user or the cluster. Replace them
    before you submit the script.

    Example:
         #!/bin/bash
        -#SBATCH --account=<account>    # <- here
        +#SBATCH --account=vision
         python train.py
    """
    if not script.is_job:
        return
    found = [(at, name) for at, name in _placeholders(script) if name]
    names = list(dict.fromkeys(name for _, name in found))
    if names:
        shown = ", ".join(f"'{name}'" for name in names[:_MOST])
        more = f" and {len(names) - _MOST} more" if names[_MOST:] else ""
        yield Hit(
            at=found[0][0],
            what=f"Placeholders are left in the script: {shown}{more}.",
            fix="replace them with your own values",
        )


def _placeholders(script: Script) -> Iterator[tuple[Located, str]]:
    for item in script.directives.items:
        named = item.option in ("output", "error", "chdir")
        name = item.value if is_placeholder(item) else placeholder_in(item.value) if named else ""
        yield Place(script.path, item.line), name
    for line, _ in script.directives.broken:
        yield Place(script.path, line), placeholder_in(script.lines[line - 1])
    for assignment in script.assignments:
        if assignment.path == script.path:
            yield assignment, placeholder_in(assignment.value.text)
    for command in (c for c in script.commands if c.name not in _PRINTS):
        for word in command.words:
            # A word with blanks is a text, or a script whose commands are read separately.
            yield command, placeholder_in(word.text) if " " not in word.text else ""
