"""E401: the CPUs of a step."""

from collections.abc import Iterator

from echelon.lint.bash import Where
from echelon.lint.edits import insert_line
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_FIRST_LOSING, _LAST_LOSING = (22, 5), (23, 2)
"""Versions of Slurm in which srun does not inherit --cpus-per-task."""
_INHERIT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
_DIRECTIVE = pattern(r"##?\s?SBATCH\b")


@rule("E401", WARNING)
def lost_cpus(script: Script) -> Iterator[Hit]:
    """`--cpus-per-task` that srun does not inherit.

    In Slurm 22.05 to 23.02, srun requests one CPU per task unless told otherwise. Lint asks
    `sinfo --version`, and reports nothing for other versions or without Slurm.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         #SBATCH --cpus-per-task=8
        +export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
         srun python train.py    # <- here
    """
    cpus = script.job.cpus_per_task or 0
    if cpus < 2 or "SRUN_CPUS_PER_TASK" in script.exported or script.is_exclusive:
        return
    for command, options, rest in script.sruns:
        own = {"cpus-per-task", "cpus-per-gpu", "exclusive", "whole"} & set(options)
        if not rest or own or command.where is Where.TASK:
            continue
        version = script.slurm_version()
        if version is not None and _FIRST_LOSING <= version <= _LAST_LOSING:
            head = [n for n, line in enumerate(script.lines, 1) if _DIRECTIVE.match(line)]
            yield Hit(
                at=command,
                what=f"In this version of Slurm ({version[0]}.{version[1]:02}), srun does not "
                f"inherit `--cpus-per-task` from sbatch. Each task gets 1 CPU instead of {cpus}.",
                fix=f"{_INHERIT}  # before srun",
                edits=(insert_line(max(head) + 1, _INHERIT),),
            )
        return  # the line applies to all steps
