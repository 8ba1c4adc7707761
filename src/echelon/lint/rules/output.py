"""E501 and E502: output that is lost."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place, beside
from echelon.lint.patterns import pattern
from echelon.lint.placeholders import placeholder_in
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_OF_JOB = pattern(r"%\d*[jJA]")
_INTO = pattern(
    r"(?:&?>>?|\btee(?:\s-a)?)\s?[\"']?((?:\./)?(?:[A-Za-z][\w.-]{0,99}/){1,9})[\w.$%{}-]"
)
"""A redirection into a relative directory."""
_MAKES = pattern(r"\b(?:mkdir|install|clone|rsync|cp|mv|tar|unzip|makedirs|python|cd|pushd)\b")
_LONGEST = 2000
"""Longer lines were not written by a person."""
_CREATES_FOLDERS = (23, 2)
"""The first version of Slurm that creates the directories of output files."""


@rule("E501", WARNING)
def missing_folder(script: Script) -> Iterator[Hit]:
    """Output in a directory that does not exist.

    Slurm opens the output file before it runs the script. Since 23.02, it creates the directory;
    before, the job fails, and no file says why. Lint asks `sinfo --version`, and reports this only
    for older versions. Bash does not run a command whose redirection it cannot open.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        +mkdir -p results
         python train.py > results/log.txt    # <- here
    """
    yield from _of_slurm(script)
    repository = script.files.repository(script.path)
    if script.batch is None or not script.is_job or "<<" in script.text:
        return
    begins = {command.line: command for command in reversed(script.batch.commands)}
    for number, command in begins.items():
        found = _INTO.search(script.line_at(command)[:_LONGEST])
        folder = found[1].rstrip("/").removeprefix("./") if found else ""
        if not found or _MAKES.search("\n".join(script.lines[: number - 1])):
            continue
        known = repository is not None and not repository.lacks(folder.partition("/")[0])
        if not known and not script.files.is_folder(beside(script.path, folder)):
            effect = "tee writes nothing" if "tee" in found[0] else "bash does not run the command"
            yield Hit(
                at=command,
                what=f"Nothing creates the directory '{folder}'. If it does not exist, {effect}.",
                fix=f"mkdir -p {folder}  # before this line",
                severity=None if repository is not None else ADVICE,
            )
            return


def _of_slurm(script: Script) -> Iterator[Hit]:
    for option in ("output", "error"):
        item = script.directives.last(option)
        folder = re.sub(r"/[^/]*%.*", "", item.value.rpartition("/")[0]) if item else ""
        if item is None or not folder or folder[0] in "~$%" or placeholder_in(item.value):
            continue
        made = any(c.name == "mkdir" and folder in c.text for c in script.commands)
        of_job = bool(_OF_JOB.search(item.value.rpartition("/")[0]))
        exists = script.files.is_folder(folder) or script.files.is_folder(
            beside(script.path, folder)
        )
        if (folder.startswith("/") and not made) or (exists and not of_job):
            continue
        version = script.slurm_version()
        if version is not None and version < _CREATES_FOLDERS:
            late = ", and the script's own `mkdir` runs too late" if made else ""
            yield Hit(
                at=Place(script.path, item.line),
                what=f"This version of Slurm does not create the directory '{folder}'. If it does "
                f"not exist, the job fails immediately and writes no output{late}.",
                fix=f"mkdir -p {folder}  # before sbatch",
            )


@rule("E502", WARNING)
def overwritten(script: Script) -> Iterator[Hit]:
    """Output file shared between jobs.

    Include the job ID in the file name: `%j`, or `%A_%a` for the ID and index of a task in a job
    array. The tasks of an array run at the same time. Without an array, it is advice.

    Example:
         #!/bin/bash
         #SBATCH --array=0-9
        -#SBATCH --output=train.out    # <- here
        +#SBATCH --output=train-%A_%a.out
         python train.py --seed "$SLURM_ARRAY_TASK_ID"
    """
    mode, given = script.directives.last("open-mode"), script.directives.last("array")
    array = given is not None and not re.fullmatch(r"\d+(?:-\d+)?%1|\d+", given.value)
    for option in ("output", "error"):
        item = script.directives.last(option)
        if item is None or not item.value or item.value.startswith("/dev/") or "$" in item.value:
            continue
        patterns = set(re.findall(r"%\d*([A-Za-z])", item.value))
        appends = mode is not None and mode.value.startswith("a")
        if appends or patterns & ({"a", "j"} if array else {"j", "J", "A"}):
            continue
        stem, dot, end = item.value.rpartition(".")
        stem, dot, end = (stem, dot, end) if stem and "/" not in end else (item.value, "", "")
        wanted = "%A_%a" if array and "%A" not in stem else "%a" if array else "%j"
        yield Hit(
            at=Place(script.path, item.line),
            what="All tasks of the job array write to this file."
            if array
            else "The next job overwrites this file, even while this job is still writing it.",
            fix=f"#SBATCH --{option}={stem}-{wanted}{dot}{end}",
            severity=None if array else ADVICE,  # some want one file of a known name
        )
