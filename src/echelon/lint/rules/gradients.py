"""E608: ranks that do not share the gradients of their models."""

import ast
from collections.abc import Iterator

from echelon.lint.facts import ranks_per_launch
from echelon.lint.imported import imports_are_read
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import guards
from echelon.lint.python_script import PythonScript
from echelon.lint.rule import ADVICE, Hit, Rule
from echelon.lint.subject import Started, Subject

_AVERAGES = pattern(
    r"(?i)parallel|\bddp\w*\(|fsdp|fully_?shard|all_?reduce|reduce_scatter|"
    r"\breduce\(|all_?gather|\bbroadcast\w*\(|horovod|\bhvd\b|deepspeed|accelerat(?:e\b|or)|"
    r"lightning|\bfabric\b|\btrainer\(|trainer\.(?:fit|train)|\bjax\b|zeroredundancy|average_|"
    r"sync_\w|grad_sync|\bapex\b|megatron|bagua|colossal|composer|\bray\b|hivemind|diloco|"
    r"tensorflow|distributedoptimizer|\brpc\b|\.prepare\(|\bcomm\.|mpi4py|distribute_\w"
)
"""Text of scripts that may average gradients, or share a model in another way."""
_OF_RANK = pattern(r"(?i)rank|world|replica|shard|node|\bdist\b")
_COMMENT = pattern(r"#[^\n]*")
_SEVERAL = 2


def find_separate_trainings(subject: Subject) -> Iterator[Hit]:
    told = set[str]()
    for one in subject.started:
        python = one.python
        if python is None or python.path in told or not _has_several_ranks(one):
            continue
        call = _own_step(python)
        if call is None or not imports_are_read(subject.files, python):
            continue
        told.add(python.path)
        yield Hit(
            at=python.at(call),
            what="Nothing averages the gradients, so each rank trains a model of its own.",
            fix="model = DistributedDataParallel(model, device_ids=[local_rank])",
        )


def _has_several_ranks(one: Started) -> bool:
    """Tell whether a launch certainly starts several ranks that belong together."""
    launch = one.launch
    if launch.mpi or launch.elsewhere or one.python is None:
        return False
    if launch.launcher is None:
        several = launch.srun is not None and (launch.amounts.tasks or 0) >= _SEVERAL
        return several and one.python.is_distributed
    ranks = ranks_per_launch(launch)
    return launch.launcher.kind in ("torchrun", "launch") and (ranks or 0) >= _SEVERAL


def _own_step(python: PythonScript) -> ast.Call | None:
    """Return the backward pass of a script whose gradients stay on their rank."""
    calls = [call for call in python.calls("backward") if isinstance(call.func, ast.Attribute)]
    steps = [call for call in python.calls("step") if isinstance(call.func, ast.Attribute)]
    text = _COMMENT.sub("", f"{python.text}\n{python.neighbours}")
    if not calls or not steps or not _OF_RANK.search(text) or _AVERAGES.search(text):
        return None
    return next((call for call in calls if not guards(python, call)), None)


RULES = (
    Rule(
        code="E608",
        title="gradients that nothing averages",
        severity=ADVICE,
        check=find_separate_trainings,
        why="A process group alone changes nothing in a training. DDP or FSDP averages the "
        "gradients of the ranks in `backward`.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=2
 torchrun --standalone --nproc_per_node=2 train.py
 --- train.py
 import os
 import torch
 import torch.distributed as dist
 local_rank = int(os.environ["LOCAL_RANK"])
 torch.cuda.set_device(local_rank)
 dist.init_process_group("nccl")
 model = torch.nn.Linear(1, 1).cuda()
+model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
 optimizer = torch.optim.SGD(model.parameters())
 model(torch.ones(1).cuda()).sum().backward()    # <- here
 optimizer.step()
 dist.destroy_process_group()
""",
    ),
)
