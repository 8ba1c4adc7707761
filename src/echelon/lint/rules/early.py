"""E308: rank variables that the job script expands before srun."""

from collections.abc import Iterator

from echelon.lint.bash import Where
from echelon.lint.files import Place
from echelon.lint.request import Amounts, read_step
from echelon.lint.rule import ADVICE, ERROR, Hit, Located, rule
from echelon.lint.script import Script

_PER_TASK = frozenset({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"})
"""Variables that differ between tasks; they are 0 in the job script."""
_RANKS = frozenset({"RANK", "LOCAL_RANK", "NODE_RANK", "MACHINE_RANK", "GROUP_RANK"})


@rule("E308", ERROR)
def early(script: Script) -> Iterator[Hit]:
    """Rank variable expanded before srun.

    The job script runs as task 0 on node 0, so it expands the variable to 0 for all tasks. With
    single quotes, a backslash or a separate script, each task expands it itself.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --ntasks-per-node=4
         #SBATCH --exclusive
        -srun python train.py --rank $SLURM_PROCID    # <- here
        +srun bash -c 'python train.py --rank $SLURM_PROCID'
    """
    told = set[tuple[str, int]]()
    for at, name, unused in (*_words(script), *_files(script), *_exports(script)):
        if (at.path, at.line) not in told:
            told.add((at.path, at.line))
            yield Hit(
                at=at,
                what=f"The job script expands `${name}` before srun starts the tasks, so it is 0 "
                "in all of them.",
                fix=f"srun bash -c '… ${name} …'  # with single quotes",
                severity=ADVICE if unused else None,
            )


def _differing(amounts: Amounts) -> frozenset[str]:
    """Return the variables that differ between tasks: the number of the node if it has others."""
    return _PER_TASK - {"SLURM_NODEID"} if amounts.nodes == 1 else _PER_TASK


def _words(script: Script) -> Iterator[tuple[Located, str, bool]]:
    """Yield uses in the arguments or the here-document of srun."""
    for command, options, words in script.sruns:
        step = read_step(script.job, options)
        if command.where is not Where.BATCH or not step.several_tasks:
            continue
        given = [*words, *([command.stdin] if command.stdin else [])]
        # With this backend, torchrun chooses the rank of a node itself.
        unused = "c10d" in " ".join(word.text for word in given)
        for use in (use for word in given for use in word.uses):
            if use.name in _differing(step):
                yield Place(command.path, use.line), use.name, unused


def _files(script: Script) -> Iterator[tuple[Located, str, bool]]:
    """Yield uses in a here-document that is written to a file which srun starts."""
    run = {shell.text for shell in script.shells if shell.where is Where.TASK}
    for shell in script.shells:
        for text in shell.written.values():
            if text.text in run and script.job.several_tasks and shell.where is Where.BATCH:
                for use in text.uses:
                    if use.name in _differing(script.job):
                        yield Place(shell.path, use.line), use.name, False


def _exports(script: Script) -> Iterator[tuple[Located, str, bool]]:
    """Yield exported ranks that the tasks of srun read, and that nothing in them sets again."""
    launches = [one for one in script.started if one.launch.srun is not None]
    plain = [
        one for one in launches if one.launch.launcher is None and one.launch.amounts.several_tasks
    ]
    for assignment in script.assignments:
        names = assignment.value.names & _differing(script.job)
        rank = assignment.name in _RANKS & script.exported
        if assignment.where is not Where.BATCH or not names or not rank:
            continue
        readers = [one for one in plain if assignment.name not in one.launch.variables]
        if readers:
            unread = all(one.python and not one.python.mentions(assignment.name) for one in readers)
            yield assignment, min(names), unread
