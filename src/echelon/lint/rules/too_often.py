"""E202: ranks that are started twice."""

from collections.abc import Iterator

from echelon.lint.bash import Where
from echelon.lint.patterns import pattern
from echelon.lint.python_script import is_conditional
from echelon.lint.ranks import ranks_per_launch
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script, Started

_TELLS_TASKS = pattern(
    r"(?i)rank|SLURM|PMI|mpi|distributed|horovod|lightning|accelerate|Trainer|jax|tensorflow|ray\b|"
    r"submitit|dask|hostname|getpid|subprocess|importlib|environ|getenv|deepspeed|fabric|world_size"
)
"""Words of scripts that may tell their tasks apart, or that lint cannot follow."""
_OF_TASK = pattern(r"PROCID|LOCALID|NODEID|\bRANK\b|--multi-prog|hostname")
_SEVERAL = 2


@rule("E202", ERROR)
def too_often(script: Script) -> Iterator[Hit]:
    """Launcher or script started too often.

    torchrun starts all ranks of a node. If srun starts torchrun once per GPU, there are too many
    ranks, or the rendezvous never completes. The same happens if torchrun starts a script that
    calls `mp.spawn`. A script that does not read its rank
    does the same work in every task, which is a warning.

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
        yield from _spawned_twice(one)
        yield from _once_per_task(one)
    yield from _same_work(script)


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


def _spawned_twice(one: Started) -> Iterator[Hit]:
    launch, launcher = one.launch, one.launch.launcher
    if launcher and (ranks_per_launch(launch) or 0) > 1 and one.python is not None:
        python = one.python
        calls = python.calls("spawn", "start_processes")
        if calls and not any(is_conditional(python, call) for call in calls):
            yield Hit(
                at=python.at(calls[0]),
                what=f"{launcher.name} starts one process per rank, and here each of them starts "
                "all ranks again.",
                fix=f"python …  # without {launcher.name}",
            )


def _same_work(script: Script) -> Iterator[Hit]:
    """Find a script that srun starts several times, and that cannot tell its tasks apart."""
    if _OF_TASK.search(script.code):
        return
    for one in script.started:
        launch, python, tasks = one.launch, one.python, one.launch.amounts.tasks or 0
        plain = launch.srun is not None and not launch.launcher and not launch.mpi
        plain = plain and not launch.command.background and launch.command.where is Where.BATCH
        if plain and python and tasks >= _SEVERAL and not _TELLS_TASKS.search(python.whole):
            yield Hit(
                at=launch,
                what=f"srun starts the script {tasks} times, and all tasks do the same work: "
                f"{python.path} does not read its rank.",
                fix="srun --ntasks=1 …  # and --cpus-per-task instead of --ntasks for more CPUs",
                severity=WARNING,
            )
            return
