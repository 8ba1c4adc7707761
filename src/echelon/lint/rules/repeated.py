"""E107: options that are given twice."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.request import Directive
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_GATHERED = frozenset({"mail-type", "licenses", "dependency", "export"})
"""Options that are often repeated; some versions of Slurm combine the values."""
_TWICE = 2


@rule("E107", WARNING)
def repeated(script: Script) -> Iterator[Hit]:
    """Option given twice.

    Slurm uses the last value. The earlier line has no effect and misleads readers.

    Example:
         #!/bin/bash
        -#SBATCH --time=01:00:00
        -#SBATCH --time=02:00:00    # <- here
        +#SBATCH --time=02:00:00
         python train.py
    """
    if script.directives.several:
        return
    given: dict[str, list[Directive]] = {}
    for item in script.directives.items:
        given.setdefault(item.option, []).append(item)
    for option, items in given.items():
        last = items[-1]
        kept = set(re.split(r"[,&|]", last.value))
        lost = [one for one in items if not set(re.split(r"[,&|]", one.value)) <= kept]
        if not lost or option in _GATHERED:
            continue
        where = f"on line {lost[-1].line}" if lost[-1].line != last.line else "in this line"
        yield Hit(
            at=Place(script.path, last.line),
            what=f"`--{option}` has another value {where}, '{lost[-1].value}'. Slurm uses the last "
            f"one, '{last.value}'.",
            fix="remove one of them",
            # A file with several requests to choose from.
            severity=ADVICE if len(items) > _TWICE else None,
        )
