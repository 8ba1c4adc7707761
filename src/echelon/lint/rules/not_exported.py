"""E312: variables that programs do not see."""

from collections.abc import Iterator

from echelon.lint.bash import Where
from echelon.lint.rule import WARNING, Hit, rule
from echelon.lint.script import Script

_OF_PROGRAMS = frozenset(
    {
        *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONPATH"),
        *("PYTHONUNBUFFERED", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
        *("NCCL_P2P_DISABLE", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_DISTRIBUTED_DEBUG", "TORCH_HOME"),
        *("CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"),
        *("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE"),
        *("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "TRANSFORMERS_OFFLINE"),
        *("TOKENIZERS_PARALLELISM", "GLOO_SOCKET_IFNAME", "XLA_FLAGS", "WANDB_DISABLED"),
    }
)
"""Variables that programs read, and that the submitter's environment hardly has."""


@rule("E312", WARNING)
def not_exported(script: Script) -> Iterator[Hit]:
    """Variable of a program that is not exported.

    A plain assignment sets a shell variable. Programs see only exported variables. It is a warning
    because sbatch passes on the submitter's environment, and a variable that is in it is exported
    already.

    Example:
         #!/bin/bash
         #SBATCH --nodes=1
        -OMP_NUM_THREADS=4    # <- here
        +export OMP_NUM_THREADS=4
         python train.py
    """
    if script.batch is None or not script.started or script.sources_others:
        return
    read = {name for shell in script.shells for name in shell.names_read}
    words = (w for one in script.started for w in one.launch.command.words)
    used = {name for word in words for name in word.names}
    told = set[str]()
    for assignment in script.batch.assignments:
        name = assignment.name
        if assignment.where is not Where.BATCH or name not in _OF_PROGRAMS:
            continue
        if name in script.exported | read | used | told:
            continue
        told.add(name)
        yield Hit(
            at=assignment,
            what=f"`{name}` is a shell variable here, so programs do not see it.",
            fix=f"export {name}",
        )
