"""E203 and E204: as many ranks as GPUs."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.ranks import (
    may_use_all_gpus,
    ranks_per_launch,
    spawns,
    uses_gpus,
    uses_several_gpus,
)
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script, Started


@rule("E203", WARNING)
def idle_gpus(script: Script) -> Iterator[Hit]:
    """Idle GPUs.

    Each rank uses one GPU. Requested GPUs count toward your usage even if they are idle.

    Example:
         #!/bin/bash
         #SBATCH --cpus-per-gpu=8
         #SBATCH --nodes=1
         #SBATCH --gpus-per-node=4
        -torchrun --standalone --nproc_per_node=2 train.py    # <- here
        +torchrun --standalone --nproc_per_node=4 train.py
    """
    beside = any(c.background for c in script.commands)
    serves = any("vllm" in shell.text.lower() for shell in script.shells)
    chosen = script.assigned("CUDA_VISIBLE_DEVICES")
    if beside or serves or chosen or len(script.started) != 1:
        return  # other programs may use the other GPUs
    for one in script.started:
        gpus, total = one.launch.amounts.gpus_per_node, _ranks_per_node(one)
        plain = one.launch.launcher is None and (
            one.python is None
            or not one.python.is_distributed
            or spawns(one.python)
            or may_use_all_gpus(one.python)
        )
        if gpus and total and total < gpus and not plain and not uses_several_gpus(one.python):
            yield Hit(
                at=one.launch,
                what=f"The job uses only {total} of {gpus} GPUs on each node. The others are idle.",
                fix=f"{_start(one, gpus)}  # or request {counted(total, 'GPU')} per node",
            )


@rule("E204", ERROR)
def too_few_gpus(script: Script) -> Iterator[Hit]:
    """More ranks than GPUs.

    NCCL needs a separate GPU for each rank.

    Example:
         #!/bin/bash
         #SBATCH --cpus-per-gpu=8
         #SBATCH --nodes=1
         #SBATCH --gpus-per-node=2
        -torchrun --standalone --nproc_per_node=4 train.py    # <- here
        +torchrun --standalone --nproc_per_node=2 train.py
         --- train.py
         import torch
         model = torch.nn.Linear(1, 1).cuda()
    """
    for one in script.started:
        launch, gpus, total = one.launch, one.launch.amounts.gpus_per_node, _ranks_per_node(one)
        ranks = launch.launcher or (one.python is not None and one.python.is_distributed)
        gloo = one.python is not None and not uses_gpus(one.python)
        if gpus and total and total > gpus and ranks and not gloo:
            yield Hit(
                at=launch,
                what=f"{total} ranks share {counted(gpus, 'GPU')} on each node. They fail with "
                "'invalid device ordinal' or 'Duplicate GPU detected'.",
                fix=_start(one, gpus),
                # Ranks that lint cannot read may share a GPU, or use none.
                severity=None if one.python and launch.command.always_runs else WARNING,
            )


def _start(one: Started, ranks: int) -> str:
    """Return the option that starts so many ranks on each node."""
    launcher = one.launch.launcher
    return f"--nproc_per_node={ranks}" if launcher else f"#SBATCH --ntasks-per-node={ranks}"


def _ranks_per_node(one: Started) -> int | None:
    """Return the ranks of a launch on each node; None if they are not known, or of E202."""
    launch, ranks = one.launch, ranks_per_launch(one.launch)
    if launch.mpi or launch.elsewhere or not ranks:
        return None
    tasks = launch.amounts.tasks_per_node if launch.srun is not None else 1
    if not tasks or (launch.launcher is not None and tasks > 1):
        return None
    return ranks * tasks
