"""E501 and E502: output that is lost."""

import re
from collections.abc import Iterator

from echelon.lint.files import Place, beside
from echelon.lint.patterns import pattern
from echelon.lint.placeholders import placeholder_in
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_OF_JOB = pattern(r"%\d*[jJA]")
_CREATES_FOLDERS = (23, 2)
"""The first version of Slurm that creates the directories of output files."""


@rule("E501", WARNING)
def missing_folder(script: Script) -> Iterator[Hit]:
    """Output in a directory that does not exist.

    Slurm opens the output file before it runs the script. Since 23.02, it creates the directory;
    before, the job fails, and no file says why. Lint asks `sinfo --version`, and reports this only
    for older versions.

    Example:
         #!/bin/bash
        -#SBATCH --output=logs/%j.out    # <- here
        +#SBATCH --output=%j.out
         python train.py
    """
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
    """Output file shared between the tasks of an array.

    The tasks of a job array run at the same time. Include the ID of the job and the index of the
    task in the file name: `%A_%a`.

    Example:
         #!/bin/bash
         #SBATCH --array=0-9
        -#SBATCH --output=train.out    # <- here
        +#SBATCH --output=train-%A_%a.out
         python train.py --seed "$SLURM_ARRAY_TASK_ID"
    """
    mode, given = script.directives.last("open-mode"), script.directives.last("array")
    appends = mode is not None and mode.value.startswith("a")
    if given is None or re.fullmatch(r"\d+(?:-\d+)?%1|\d+", given.value) or appends:
        return
    for option in ("output", "error"):
        item = script.directives.last(option)
        if item is None or not item.value or item.value.startswith("/dev/") or "$" in item.value:
            continue
        if {"a", "j"} & set(re.findall(r"%\d*([A-Za-z])", item.value)):
            continue
        stem, dot, end = item.value.rpartition(".")
        stem, dot, end = (stem, dot, end) if stem and "/" not in end else (item.value, "", "")
        wanted = "%a" if "%A" in stem else "%A_%a"
        yield Hit(
            at=Place(script.path, item.line),
            what="All tasks of the job array write to this file.",
            fix=f"#SBATCH --{option}={stem}-{wanted}{dot}{end}",
        )
