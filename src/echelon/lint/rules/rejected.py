"""E104: directives that sbatch rejects."""

import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.clusters.slurm.options import SBATCH, parse_sbatch, split_directive
from echelon.errors import UsageError
from echelon.lint.edits import Edit, apply_edits, replace_group
from echelon.lint.files import Place
from echelon.lint.forms import UNIT, nearest_option, problem_of
from echelon.lint.patterns import pattern
from echelon.lint.placeholders import is_placeholder, placeholder_in
from echelon.lint.request import Directive
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_BLANKS = pattern(r"--[\w-]+(\s+=\s*|=\s+)(?=[\w/%'\"])|-[A-Za-z](=)")


@rule("E104", ERROR)
def rejected(script: Script) -> Iterator[Hit]:
    """Directive that sbatch rejects.

    sbatch checks names and values before it queues a job. A memory size is a whole number with K,
    M, G or T. A time limit is in minutes, or days-hours:minutes:seconds. The value of a long
    option follows `=` or a space, that of a short option a space or nothing. An unknown name is
    reported only if it resembles an option; others may belong to a plugin.

    Example:
         #!/bin/bash
        -#SBATCH --mem=16Go    # <- here
        +#SBATCH --mem=16G
         python train.py
    """
    for line, message in script.directives.broken:
        if not placeholder_in(script.lines[line - 1]):
            edits = _repair(line, script.lines[line - 1])
            what = (
                f"sbatch rejects or misreads this line: {message.removeprefix(f'line {line}: ')}."
            )
            fix = "#SBATCH --option=value, without spaces around = and with all quotes closed"
            yield Hit(at=Place(script.path, line), what=what, fix=fix, edits=edits)
    for item in script.directives.items:
        if is_placeholder(item) or "$" in item.value or item.value.startswith("#"):
            continue
        # Letters in the place of a number may be a form that a program fills in.
        letters = item.option == "array" and re.search(r"[A-Za-z]", item.value)
        if problem := problem_of(item, script.lines[item.line - 1]):
            what, right = problem
            yield Hit(
                at=Place(script.path, item.line),
                what=f"{what}. sbatch rejects the script.",
                fix=f"#SBATCH {right}",
                severity=WARNING if letters else None,
                edits=_edits(script.lines[item.line - 1], item),
            )


def _edits(line: str, item: Directive) -> tuple[Edit, ...]:
    """Return the certain fix of a name, a unit or an equals sign, if the line has it once."""
    number = item.line
    name = rf"--({re.escape(item.option)})(?![\w-])"
    if item.option not in SBATCH.known and len(found := list(re.finditer(name, line))) == 1:
        return (replace_group(number, found[0], nearest_option(item.option), 1),)
    if unit := UNIT.fullmatch(item.value):
        found = list(re.finditer(rf"(?<=[=\s]){re.escape(item.value)}", line))
        return tuple(replace_group(number, f, f"{unit[1]}{unit[2]}") for f in found[:1])
    return _repair(number, line) if item.value.startswith("=") else ()


def _repair(number: int, line: str) -> tuple[Edit, ...]:
    """Return the edits that remove blanks around `=`, if the line is then valid."""
    edits = [
        replace_group(number, match, "=" if match[1] else " ", 1 if match[1] else 2)
        for match in _BLANKS.finditer(line)
    ]
    repaired = apply_edits(line, (replace(e, line=1, end_line=1) for e in edits))
    try:
        parse_sbatch(split_directive(repaired.partition("#SBATCH")[2], number))
    except UsageError:
        return ()
    return tuple(edits)
