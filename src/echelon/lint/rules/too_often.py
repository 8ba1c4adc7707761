"""E202: ranks that are started twice."""

from collections.abc import Iterator

from echelon.lint.ranks import ranks_per_launch
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script, Started

_SEVERAL = 2


@rule("E202", ERROR)
def too_often(script: Script) -> Iterator[Hit]:
    """Launcher started too often.

    torchrun starts all ranks of a node. If srun starts torchrun once per GPU, there are too many
    ranks, or the rendezvous never completes.

    Example:
         #!/bin/bash
         #SBATCH --cpus-per-gpu=8
         #SBATCH --nodes=1
        -#SBATCH --ntasks-per-node=4
        +#SBATCH --ntasks-per-node=1
         #SBATCH --gpus-per-node=4
         srun torchrun --standalone --nproc_per_node=4 train.py    # <- here
    """
    for one in script.started:
        yield from _once_per_task(one)


def _once_per_task(one: Started) -> Iterator[Hit]:
    launch, launcher = one.launch, one.launch.launcher
    tasks = launch.amounts.tasks_per_node or 0
    if launcher is None or launch.srun is None:
        return
    option = launcher.option("nproc-per-node")
    counted = option is not None and "GPU" in option.text.upper()
    gpus, ranks = launch.amounts.gpus_per_node or 0, ranks_per_launch(launch)
    rank = launcher.option("node-rank", "machine-rank")
    own = launch.amounts.gpus_per_task or (rank is not None and "PROCID" in rank.text)
    if tasks >= _SEVERAL and ((ranks or 0) > 1 or (ranks is None and counted and gpus > 1)):
        yield Hit(
            at=launch,
            what=f"srun starts {launcher.name} {tasks} times on each node, and each instance tries "
            "to start all ranks of the node.",
            fix="srun --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 …"
            if {"ntasks", "ntasks-per-node"} & set(launch.srun)
            else "#SBATCH --ntasks-per-node=1",
            severity=None if launch.command.always_runs and not own else WARNING,
        )
