"""E104: directives that sbatch rejects."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.clusters.slurm.options import SBATCH, parse_sbatch, split_directive
from echelon.errors import UsageError
from echelon.lint.edits import Edit, apply_edits, replace_group
from echelon.lint.files import Place
from echelon.lint.forms import FORMS, NEVER_EMPTY
from echelon.lint.patterns import pattern
from echelon.lint.placeholders import is_placeholder, placeholder_in
from echelon.lint.request import Directive
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_BLANKS = pattern(r"--[\w-]+(\s+=\s*|=\s+)(?=[\w/%'\"])|-[A-Za-z](=)")
_UNIT = pattern(r"(?i)(\d+)\s?([KMGT])(?:o|i?B)")
_FREE = frozenset({"job-name", "output", "error", "comment", "account", "qos", "wckey", "input"})
"""Options that accept a value with an equals sign in front."""


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
        if problem := _problem(item, script.lines[item.line - 1]):
            what, right = problem
            yield Hit(
                at=Place(script.path, item.line),
                what=f"{what}. sbatch rejects the script.",
                fix=f"#SBATCH {right}",
                severity=WARNING if letters else None,
                edits=_edits(script.lines[item.line - 1], item),
            )


def _problem(item: Directive, line: str) -> tuple[str, str] | None:
    """Return what is wrong with a directive, and a valid one; None if it may be valid."""
    option, value = item.option, item.value
    form = FORMS.get(option)
    if option not in SBATCH.known:
        near = _nearest(option)
        right = f"--{near}={value}" if value else f"--{near}"
        return (f"sbatch has no option `--{option}`", right) if near else None
    if not value:
        missing = option in NEVER_EMPTY if "=" in line else option in SBATCH.valued
        return ("The option has no value", f"--{option}=…") if missing else None
    if value.startswith("=") and option not in _FREE:
        return f"The equals sign is part of the value '{value}'", f"--{option}={value[1:]}"
    if option in SBATCH.switches:
        return "The option takes no value", f"--{option}"
    if form is None or form.fits(value):
        return None
    example = f"--{option}" if option in SBATCH.optional else f"--{option}={form.example}"
    if unit := _UNIT.fullmatch(value):
        example = f"--{option}={unit[1]}{unit[2].upper()}"
    return f"'{value}' is not a valid value of `--{option}` ({form.words})", example


def _nearest(name: str) -> str:
    dashed = name.replace("_", "-").lower()
    found = difflib.get_close_matches(dashed, sorted(SBATCH.known), n=1, cutoff=0.8)
    return dashed if dashed in SBATCH.known else found[0] if found else ""


def _edits(line: str, item: Directive) -> tuple[Edit, ...]:
    """Return the certain fix of a name, a unit or an equals sign, if the line has it once."""
    number = item.line
    name = rf"--({re.escape(item.option)})(?![\w-])"
    if item.option not in SBATCH.known and len(found := list(re.finditer(name, line))) == 1:
        return (replace_group(number, found[0], _nearest(item.option), 1),)
    if unit := _UNIT.fullmatch(item.value):
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
