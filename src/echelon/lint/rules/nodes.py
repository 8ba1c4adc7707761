"""E205: launchers whose number of nodes is not the job's."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script


@rule("E205", WARNING)
def wrong_nodes(script: Script) -> Iterator[Hit]:
    """Wrong number of nodes.

    The launcher waits until the given number of nodes has joined. `SLURM_JOB_NUM_NODES` is always
    the number of nodes of the job.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --ntasks-per-node=1
         #SBATCH --exclusive
        -srun torchrun --nnodes=4 --rdzv_endpoint=$HOSTNAME:29500 train.py    # <- here
        +srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py
    """
    nodes = script.job.nodes
    alone = not any(one.launch.command.background for one in script.started)
    for launch in [one.launch for one in script.started]:
        launcher = launch.launcher
        if launcher is None or not launcher.complete or launcher.kind == "deepspeed":
            continue
        option = launcher.option("nnodes", "num-machines")
        own_config = launcher.kind == "accelerate" and option is None
        given = 1 if option is None else option.number
        step = launch.amounts.nodes if launch.srun is not None else nodes
        if not nodes or not given or not step or given in (nodes, step) or own_config:
            continue
        if (option is None and (launch.srun is None or not alone)) or given == launch.amounts.tasks:
            continue
        effect = "It waits for the missing nodes until it times out."
        yield Hit(
            at=launch.place_of(option, script.path),
            what=f"{launcher.name} expects {counted(given, 'node')}, but the job has {nodes}. "
            + (
                effect
                if given > nodes
                else "The nodes train separate models, or some are rejected."
            ),
            fix="--num_machines=$SLURM_JOB_NUM_NODES"
            if launcher.kind == "accelerate"
            else "--nnodes=$SLURM_JOB_NUM_NODES",
        )
