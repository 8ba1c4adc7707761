"""E314: variables that neither the script nor Slurm sets."""

import difflib
import re
from collections.abc import Iterator

from echelon.lint.bash import Where
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.request import COUNTING_TASKS, NUMBERS_OF_TASKS, OF_OPTIONS
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_SETS_BY_NAME = pattern(r"\b(?:eval|declare|printf\s+-v|read|mapfile|readarray|getopts|set -a)\b")
"""Commands that set variables whose names the script may not show."""
_SHORTEST = 5
"""Minimum length of names that are compared."""
_ALIKE = 0.85


@rule("E314", WARNING)
def never_set(script: Script) -> Iterator[Hit]:
    """Variable that is never set.

    Bash expands a variable that is not set to nothing. Lint reports a name that the script does not
    set if it resembles a variable that the script sets and never reads; others may come from
    outside. `SLURM_GPUS_PER_NODE` and `SLURM_CPUS_PER_TASK` repeat an option, and are empty without
    it. It is a warning because sbatch may get the option on its command line.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -LEARNING_RATES=0.1
        +LEARNING_RATE=0.1
         python train.py --lr $LEARNING_RATE    # <- here
    """
    if script.is_job:
        yield from _of_slurm(script)
        if not script.sources_others and not _SETS_BY_NAME.search(script.code):
            yield from _misspelt(script)


def _misspelt(script: Script) -> Iterator[Hit]:
    assigned = {assignment.name for assignment in script.assignments}
    read = {name for shell in script.shells for name in shell.names_read}
    # Arithmetic reads names without a dollar sign, and a trap or another program reads text.
    unread = {name for name in assigned - read if len(name) >= _SHORTEST} - script.exported
    told = set[str]()
    used = [(c.path, w) for c in script.commands for w in c.words] if unread else []
    for path, word in used:
        for use in word.uses:
            name = use.name
            if use.guarded or name in assigned | told or len(name) < _SHORTEST:
                continue
            told.add(name)
            near = difflib.get_close_matches(name, sorted(unread), n=1, cutoff=_ALIKE)
            same = near and re.sub(r"\d", "", near[0]) != re.sub(r"\d", "", name)
            if same and not re.search(
                rf"\b{name}(?:\+?=|\b[^\n]*\bin\b)|\(\(.*\b{name}\b", script.code
            ):
                yield Hit(
                    at=Place(path, use.line),
                    what=f"Nothing in the script sets `{name}`, and nothing reads `{near[0]}`, "
                    "which has a similar name.",
                    fix=f"${near[0]}",
                )


def _of_slurm(script: Script) -> Iterator[Hit]:
    """Find variables of Slurm that are empty, because the job lacks the option."""
    if script.directives.several:
        return
    assigned = {assignment.name for assignment in script.assignments}
    counted = any(map(script.directives.last, COUNTING_TASKS))
    wanted = OF_OPTIONS | ({} if counted else dict.fromkeys(NUMBERS_OF_TASKS, "ntasks"))
    words = [(c.path, word) for c, options, rest in script.sruns for word in options.values()]
    for one in script.started:
        options = one.launch.launcher.options.values() if one.launch.launcher else ()
        words += [(one.launch.path, word) for word in (*options, *one.launch.arguments)]
    batch = script.shells[:1]
    exported = (a for s in batch for a in s.assignments if a.name in script.exported)
    words += [(a.path, a.value) for a in exported if a.where is Where.BATCH and not a.array]
    told = set[tuple[str, int]]()
    for path, word in words:
        for use in word.uses:
            option = wanted.get(use.name)
            if option is None or use.guarded or use.name in assigned or (path, use.line) in told:
                continue
            in_task = option == "ntasks" and any(c.line == use.line for c, _, _ in script.sruns)
            given = script.directives.last(option)
            typed = given is not None and "GPUS" in use.name and ":" in given.value
            if (
                in_task
                or (given is not None and not typed)
                or re.search(rf"#[^\n]*sbatch [^\n]*--{option}", script.text)
            ):
                continue  # srun sets it, or a comment shows how to submit the script
            told.add((path, use.line))
            yield Hit(
                at=Place(path, use.line),
                what=f"`${use.name}` is '{given.value}' here, which is not a number."
                if given
                else f"`${use.name}` is empty. Slurm sets it only if the script uses `--{option}`.",
                fix=f"#SBATCH --{option}=…",
                # Then sbatch gets them on its command line, and maybe with this option.
                severity=ADVICE if "GPUS" in use.name and not script.job.gpus_per_node else None,
            )
