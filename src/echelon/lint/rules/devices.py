"""E204 and E206: ranks without a GPU of their own."""

import ast
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.facts import is_training, ranks_per_launch, runs_always, uses_gpus
from echelon.lint.patterns import pattern
from echelon.lint.python_script import constant, keyword, origin, values_of
from echelon.lint.rule import ERROR, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_TENSOR_PARALLEL = pattern(r"\btensor[-_]parallel[-_]size[= ](\d{1,3})\b")


def find_too_many_ranks(subject: Subject) -> Iterator[Hit]:
    yield from _tensor_parallel(subject)
    for one in subject.started:
        launch, amounts = one.launch, one.launch.amounts
        gpus, tasks, ranks = amounts.gpus_per_node, amounts.tasks_per_node, ranks_per_launch(launch)
        if not gpus or not ranks or launch.mpi or launch.elsewhere:
            continue
        gloo = one.python is not None and not uses_gpus(one.python)
        if (
            not is_training(subject, one)
            or gloo
            or (launch.launcher is None and one.python is None)
        ):
            continue
        total = ranks * (tasks or 1) if launch.srun is not None else ranks
        if tasks and launch.launcher is not None and tasks > 1:
            continue  # reported by E202
        if total > gpus:
            yield Hit(
                at=launch,
                what=f"{total} ranks share {counted(gpus, 'GPU')} on each node. They fail with "
                "'invalid device ordinal' or 'Duplicate GPU detected'.",
                fix=f"--nproc_per_node={gpus}"
                if launch.launcher
                else f"#SBATCH --ntasks-per-node={gpus}",
                # Ranks that lint cannot read may share a GPU, or use none.
                severity=None if one.python is not None and runs_always(launch) else WARNING,
            )


def _tensor_parallel(subject: Subject) -> Iterator[Hit]:
    """Find an inference server that expects more GPUs than a node of the job has."""
    gpus = subject.job.gpus_per_node
    for command in subject.commands if gpus and subject.is_job else ():
        found = _TENSOR_PARALLEL.search(command.text)
        if found and command.name not in ("echo", "printf") and gpus:
            size = int(found[1])
            if size > gpus and not subject.may_have_several_nodes:
                yield Hit(
                    at=command,
                    what=f"The server expects {counted(size, 'GPU')}, but the job has "
                    f"{gpus} on its node.",
                    fix=f"#SBATCH --gpus-per-node={size}",
                    severity=WARNING,
                )


def find_hidden_devices(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        amounts, python = one.launch.amounts, one.python
        if one.launch.srun is None or one.launch.launcher is not None or python is None:
            continue
        if not amounts.gpus_per_task or (amounts.tasks_per_node or 1) < 2:
            continue
        for call in python.calls("set_device"):
            device = keyword(call, "device", 0)
            values = values_of(python, device) if device is not None else []
            names = (n for value in values for n in ast.walk(value) if isinstance(n, ast.Name))
            values = [*values, *(value for name in names for value in values_of(python, name))]
            if any(isinstance(constant(value), int) for value in values):
                continue  # set to 0, because the task sees one GPU
            made_of = origin(python, device)
            local = any(word in made_of for word in ("LOCAL_RANK", "SLURM_LOCALID", "local_rank"))
            if local and "device_count" not in made_of and "%" not in made_of:
                yield Hit(
                    at=python.at(call),
                    what=f"With `--gpus-per-task={amounts.gpus_per_task}`, each task sees only its "
                    "own GPUs, numbered from 0. Larger local ranks fail with 'invalid device "
                    "ordinal'.",
                    fix="#SBATCH --gpus-per-node=…  # instead of --gpus-per-task\n"
                    "or: torch.cuda.set_device(local_rank % torch.cuda.device_count())",
                )


RULES = (
    Rule(
        code="E204",
        title="more ranks than GPUs",
        severity=ERROR,
        check=find_too_many_ranks,
        why="NCCL needs a separate GPU for each rank.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=2
-torchrun --standalone --nproc_per_node=4 train.py    # <- here
+torchrun --standalone --nproc_per_node=2 train.py
 --- train.py
 import torch
 model = torch.nn.Linear(1, 1).cuda()
""",
    ),
    Rule(
        code="E206",
        title="device selected by local rank with `--gpus-per-task`",
        severity=WARNING,
        check=find_hidden_devices,
        why="With `--gpus-per-task`, Slurm binds each task to its own GPUs and numbers them from "
        "0 in every task. The local rank is then not a valid device index.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=1
 #SBATCH --ntasks-per-node=4
-#SBATCH --gpus-per-task=1
+#SBATCH --gpus-per-node=4
 srun python train.py
 --- train.py
 import os
 import torch
 torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))    # <- here
""",
    ),
)
