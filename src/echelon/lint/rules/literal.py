"""E106: variables in directives."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_PATTERNS = {"JOB_NAME": "%x", "ARRAY_JOB": "%A", "TASK_ID": "%a", "JOB": "%j", "USER": "%u"}
"""What Slurm expands in file names, by a part of the variable's name."""
_OTHERWISE = "the value, or pass it to sbatch as an option"
_OF_FILE_NAMES = pattern(r"%\d*[AaJjNnstux](?![A-Za-z0-9])")


@rule("E106", ERROR)
def literal(script: Script) -> Iterator[Hit]:
    """Variable in an `#SBATCH` directive.

    The shell treats directives as comments, and Slurm does not expand variables. In file names,
    Slurm replaces only its own patterns, such as `%j` and `%x`.

    Example:
         #!/bin/bash
        -#SBATCH --output=train-$SLURM_JOB_ID.out    # <- here
        +#SBATCH --output=train-%j.out
         python train.py
    """
    for item in script.directives.items:
        variable = re.search(r"\$(\{\w+[^{}]*\}|\w+)", item.value)
        if item.option != "comment" and (variable or item.value.startswith("~/")):
            shown = variable[0] if variable else "~"
            better = next((new for name, new in _PATTERNS.items() if name in shown), _OTHERWISE)
            yield Hit(
                at=Place(script.path, item.line),
                what="Slurm does not expand variables in directives. It uses the text literally.",
                fix=f"replace {shown} with {better}",
                # A plugin may expand it.
                severity=WARNING if item.option.startswith("container") else None,
            )
        found = _OF_FILE_NAMES.search(item.value)
        if found and item.option in ("job-name", "mail-user"):
            yield Hit(
                at=Place(script.path, item.line),
                what=f"Slurm replaces {found[0]} only in file names. `--{item.option}` contains it "
                "literally.",
                fix=f"remove {found[0]}",
                severity=ADVICE if item.option == "job-name" else WARNING,
            )
