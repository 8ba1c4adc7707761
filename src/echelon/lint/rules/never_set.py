"""E314: variables that Slurm does not set."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Word
from echelon.lint.files import Place
from echelon.lint.request import COUNTING_TASKS, NUMBERS_OF_TASKS, OF_OPTIONS
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script


@rule("E314", WARNING)
def never_set(script: Script) -> Iterator[Hit]:
    """Variable of an option that the job does not use.

    `SLURM_GPUS_PER_NODE` and `SLURM_CPUS_PER_TASK` repeat an option, and are empty without it. It
    is a warning because sbatch may get the option on its command line.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         #SBATCH --gres=gpu:4
        -torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE train.py    # <- here
        +torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py
    """
    if not script.is_job or script.directives.several:
        return
    counted = any(map(script.directives.last, COUNTING_TASKS))
    wanted = OF_OPTIONS | ({} if counted else dict.fromkeys(NUMBERS_OF_TASKS, "ntasks"))
    assigned = {assignment.name for assignment in script.assignments}
    told = set[tuple[str, int]]()
    for path, use in ((path, use) for path, word in _words(script) for use in word.uses):
        option = wanted.get(use.name)
        if option is None or use.guarded or use.name in assigned or (path, use.line) in told:
            continue
        in_task = option == "ntasks" and any(c.line == use.line for c, _, _ in script.sruns)
        given = script.directives.last(option)
        typed = given is not None and "GPUS" in use.name and ":" in given.value
        shown = re.search(rf"#[^\n]*sbatch [^\n]*--{option}", script.text)
        if in_task or (given is not None and not typed) or shown:
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


def _words(script: Script) -> Iterator[tuple[str, Word]]:
    """Yield the words of srun, of launchers and programs, and of exported variables."""
    for command, options, _ in script.sruns:
        yield from ((command.path, word) for word in options.values())
    for launch in (one.launch for one in script.started):
        options = launch.launcher.options if launch.launcher else {}
        yield from ((launch.path, word) for word in (*options.values(), *launch.arguments))
    for assignment in script.batch.assignments if script.batch else ():
        if assignment.name in script.exported and not assignment.array:
            yield assignment.path, assignment.value
