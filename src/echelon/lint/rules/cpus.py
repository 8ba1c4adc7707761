"""E401 to E403: the CPUs of a task and the processes that share them."""

import re
from collections.abc import Iterator
from itertools import zip_longest

from echelon.core.units import counted
from echelon.lint.bash import Where
from echelon.lint.edits import insert_line
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.ranks import processes_per_task
from echelon.lint.rule import ADVICE, WARNING, Hit, rule
from echelon.lint.script import Script

_FIRST_LOSING, _LAST_LOSING = (22, 5), (23, 2)
"""Versions of Slurm in which srun does not inherit --cpus-per-task."""
_INHERIT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
_WORKERS = pattern(r"--(?:dataloader[-_])?(?:num[-_]|n[-_])?workers|-j")
_DIRECTIVE = pattern(r"##?\s?SBATCH\b")
_MANY_PER_CPU = 4
"""Workers per CPU that are too many even if they often wait for the file system."""


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


@rule("E402", WARNING)
def too_many_workers(script: Script) -> Iterator[Hit]:
    """More data loader workers than CPUs.

    Every rank starts its own workers. All ranks of a task share its CPUs. Fewer than four workers
    per CPU are advice, because they may wait for files most of the time.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         #SBATCH --cpus-per-task=4
        -torchrun --standalone --nproc_per_node=4 train.py --num_workers=8    # <- here
        +torchrun --standalone --nproc_per_node=4 train.py --num_workers=1
    """
    for one in script.started:
        cpus, processes = one.launch.cpus, processes_per_task(one)
        words = one.launch.arguments
        for word, after in zip_longest(words, words[1:]):
            name, equals, value = word.text.partition("=")
            given = value if equals else after.text if after and after.known else ""
            if not _WORKERS.fullmatch(name) or not re.fullmatch(r"[0-9]{1,4}", given):
                continue
            total = int(given) * (processes or 0)
            if cpus and total > cpus and not one.launch.mpi:
                yield Hit(
                    at=one.launch.place_of(word, script.path),
                    what=f"{counted(total, 'data loader worker')} in each task share "
                    f"{counted(cpus, 'CPU')}. They slow each other down if they decode or "
                    "transform the data.",
                    fix=f"{name}={max(1, cpus // (processes or 1))}",
                    severity=None if total >= _MANY_PER_CPU * cpus else ADVICE,
                )


@rule("E403", WARNING, off=True)
def too_few_cpus(script: Script) -> Iterator[Hit]:
    """Fewer CPUs than processes.

    All processes of a task share the CPUs of `--cpus-per-task`. With torchrun or `mp.spawn`, these
    are all ranks of the node.

    Example:
         #!/bin/bash
        -#SBATCH --cpus-per-task=2    # <- here
        +#SBATCH --cpus-per-task=32
         #SBATCH --nodes=1
         torchrun --standalone --nproc_per_node=4 train.py
    """
    given = script.directives.last("cpus-per-task")
    for one in script.started:
        cpus, processes = one.launch.cpus, processes_per_task(one)
        if given and cpus and processes and processes > cpus:
            yield Hit(
                at=Place(script.path, given.line),
                what=f"{processes} processes in each task share {counted(cpus, 'CPU')} and slow "
                "each other down.",
                fix=f"#SBATCH --cpus-per-task={processes}  # or more, as far as nodes have them",
            )
