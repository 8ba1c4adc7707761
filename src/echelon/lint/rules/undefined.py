"""E626: Python that raises a NameError."""

import difflib
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.python_names import lines_always_run, undefined_names
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_MOST_NAMES = 20


@rule("E626", ERROR)
def undefined(script: Script) -> Iterator[Hit]:
    """Undefined name.

    Python finds an undefined name only when it reaches the line. On a cluster, that can be after
    hours in the queue. It is an error on a line that always runs, and else a warning.

    Example:
         --- train.py
        -epochs = 3
        +epoch_count = 3
         print(epoch_count)    # <- here
    """
    for python in script.pythons:
        names = undefined_names(python)
        always = lines_always_run(python) if names else frozenset()
        commands = [o.launch.command for o in script.started if o.python is python]
        runs = not commands or any(command.always_runs for command in commands)
        for name, nodes in list(names.items())[:_MOST_NAMES]:
            certain = [node for node in nodes if node.lineno in always and runs]
            near = difflib.get_close_matches(name, sorted(python.assigned), n=1, cutoff=0.8)
            yield Hit(
                at=Place(python.path, min(node.lineno for node in certain or nodes)),
                what=f"`{name}` is not defined. This line raises a NameError"
                + ("." if certain else " if the script reaches it."),
                fix=near[0] if near else f"define or import {name}",
                severity=None if certain else WARNING,
            )
