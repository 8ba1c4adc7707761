"""E409: GPUs that a script chooses itself."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.patterns import pattern
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_DEVICES = pattern(r"\d{1,3}(?:,\d{1,3}){0,63}")


@rule("E409", WARNING)
def chosen_devices(script: Script) -> Iterator[Hit]:
    """`CUDA_VISIBLE_DEVICES` set by hand.

    Slurm sets the variable to the GPUs of the job. A different number leaves GPUs idle or lists
    GPUs that do not exist.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
         #SBATCH --gpus-per-node=2
         #SBATCH --cpus-per-gpu=8
        -export CUDA_VISIBLE_DEVICES=0,1,2,3    # <- here
         torchrun --standalone --nproc_per_node=2 train.py
    """
    gpus = script.job.gpus_per_node
    if not gpus or script.batch is None or script.is_exclusive or script.directives.several:
        return
    if any(one.launch.srun is not None for one in script.started):
        return  # Slurm sets the variable again for each step
    for assignment in script.assigned("CUDA_VISIBLE_DEVICES"):
        value = assignment.value
        if not value.known or not _DEVICES.fullmatch(value.text) or value.uses:
            continue
        count, highest = value.text.count(",") + 1, max(map(int, value.text.split(",")))
        alone = assignment.certain and len(script.started) == 1
        if highest >= gpus or (count < gpus and alone):
            yield Hit(
                at=assignment,
                what=f"`CUDA_VISIBLE_DEVICES` is {value.text}, but the job has "
                f"{counted(gpus, 'GPU')} on each node, which count from 0.",
                fix="remove the line; Slurm sets the variable to the GPUs of the job",
            )
