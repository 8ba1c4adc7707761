"""E118: jobs that use GPUs and request none."""

import ast
import re
from collections.abc import Iterator
from itertools import islice

from echelon.lint.bash import Command
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.python_guards import is_called
from echelon.lint.python_script import PythonScript, constant, is_conditional, keyword
from echelon.lint.request import list_gres_gpus
from echelon.lint.rule import ADVICE, Hit, Located, Rule
from echelon.lint.subject import Started, Subject

_CONTAINERS = frozenset({"singularity", "apptainer", "docker", "podman"})
_MOST_WORDS = 8
"""Words of a command among which a container program is looked for."""
_PER_NODE = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
_OTHERS = frozenset({"exclusive", "constraint", "licenses", "gpus-per-socket", "tres-per-task"})
"""Options that may give a job the GPUs of its nodes."""
_NAMES_GPUS = pattern(
    r"gpu|[avhp]\d00|l40|gh200|b200|rtx|tesla|mi\d+|cuda|dgx|accel|booster|volta|ampere|hopper|\bgh\b"
)
_LOADS_CUDA = pattern(r"(?i)(?:module (?:load|add)|ml) [^\n]{0,200}(?:cuda|cudnn|nccl)")
_NAMES_CPU = pattern(r"(?:^|[^a-z])cpu(?:s|only)?(?:[^a-z]|$)|no[-_]?gpu|non[-_]?gpu")
_REQUESTS = pattern(r"\bsbatch\b.{0,300}?\s(?:--gres|--gpus|-G)")
"""A command that submits a job with GPUs."""
_MAY_DO_WITHOUT = pattern(
    r"is_available|device_count|no[-_]cuda|use[-_]cuda|use[-_]gpu|with[-_]cuda|[\"']cpu[\"']|\btry:"
)
"""Text of scripts that may run without a GPU."""
_WORKS_ON_GPUS = pattern(r"\bcuda\b|\bTrainer\(|\bAccelerator\(|\bFabric\(|\bjax\b|\btensorflow\b")
_LEARNS = pattern(r"\.backward\(|\.fit\(|\bTrainer\(|\.train\(\)|\.eval\(\)")


def find_no_gpus(subject: Subject) -> Iterator[Hit]:
    if not subject.is_job or subject.directives.several or subject.job.gpus_per_node != 0:
        return
    hits = _on_gpu_partition(subject) if _may_get_gpus(subject) else _needs(subject)
    for hit in islice(hits, 1):
        if not _is_requested_outside(subject):
            yield hit


def _needs(subject: Subject) -> Iterator[Hit]:
    """Yield the programs and commands of a job that need a GPU."""
    for one in subject.started:
        here = one.launch.amounts.gpus_per_node == 0 and not one.launch.elsewhere
        if here and (sign := _uses_gpus(one) or _needs_gpus(subject, one)):
            yield _no_gpus(one.launch, sign)
    for command in subject.commands:
        if sign := _shows_gpus(subject, command):
            yield _no_gpus(command, sign)


def _is_requested_outside(subject: Subject) -> bool:
    """Tell whether a comment or another file submits the job with GPUs."""
    comments = [text for _, text, _ in subject.batch.comments] if subject.batch else []
    lines = [*comments, *subject.files.lines_with(subject.path)]
    return any(map(_REQUESTS.search, lines))


def _no_gpus(at: Located, sign: str) -> Hit:
    return Hit(
        at=at,
        what=f"{sign}, but the job requests no GPUs. Most clusters then give it none.",
        fix="#SBATCH --gpus-per-node=…",
    )


def _may_get_gpus(subject: Subject) -> bool:
    """Tell whether an option, or the name of a partition, may come with GPUs."""
    items = subject.directives.items
    if _OTHERS & {item.option for item in items}:
        return True
    named = [i.value for i in items if i.option in ("partition", "qos", "reservation", "nodelist")]
    if any(_NAMES_GPUS.search(name.lower()) for name in named):
        return True
    return _steps_ask(subject)


def _steps_ask(subject: Subject) -> bool:
    """Tell whether a step requests GPUs, or whole nodes."""
    names = (name for _, options, _ in subject.sruns for name in options)
    return any(name.startswith("gpu") or name in ("gres", *_OTHERS) for name in names)


def _on_gpu_partition(subject: Subject) -> Iterator[Hit]:
    """Find jobs that load CUDA, in a partition for GPUs, and request none."""
    partition = subject.directives.last("partition")
    whole = _OTHERS & {item.option for item in subject.directives.items}
    if whole or partition is None or _steps_ask(subject):
        return
    loads = next((c for c in subject.commands if _LOADS_CUDA.match(c.text)), None)
    name = partition.value.lower()
    if loads and "gpu" in name and "," not in name and not _NAMES_CPU.search(name):
        yield Hit(
            at=Place(subject.path, partition.line),
            what=f"The job loads CUDA in partition {partition.value} and requests no GPUs.",
            fix="#SBATCH --gpus-per-node=…  # unless the partition allocates whole nodes",
        )


def _uses_gpus(one: Started) -> str:
    """Return how a launch shows that it needs a GPU; empty if it does not."""
    python, launcher = one.python, one.launch.launcher
    groups = python.calls("init_process_group") if python else []
    if python and any(constant(keyword(call, "backend", 0)) == "nccl" for call in groups):
        return f"{python.path} uses NCCL"
    if launcher is not None and {"multi-gpu", "num-gpus", "gpu-ids"} & set(launcher.options):
        return f"{launcher.name} is told to use GPUs"
    if any("cuda" in re.split(r"[=:]", word.text) for word in one.launch.arguments):
        return "The program is told to use cuda"
    ranks = launcher.option("nproc-per-node") if launcher is not None else None
    if ranks is not None and any(u.name in _PER_NODE and not u.guarded for u in ranks.uses):
        return "The number of ranks is the number of GPUs of the job"
    return ""


def _needs_gpus(subject: Subject, one: Started) -> str:
    """Return how a launch fails without a GPU, in a job that shares its node."""
    memory = any(map(subject.directives.last, ("mem", "mem-per-cpu")))
    if memory and one.python is not None and _needs_cuda(one.python):
        return f"{one.python.path} needs CUDA"
    return ""


def _needs_cuda(python: PythonScript) -> bool:
    """Tell whether a script moves a model or its data to a GPU, whatever the machine has."""
    if _MAY_DO_WITHOUT.search(python.text):
        return False
    moves = [call for call in python.calls("cuda") if isinstance(call.func, ast.Attribute)]
    moves += [c for c in python.calls("to") if constant(keyword(c, "device", 0)) == "cuda"]
    return any(not is_conditional(python, call) and is_called(python, call) for call in moves)


def _shows_gpus(subject: Subject, command: Command) -> str:
    """Return how a command of the job shows that it needs a GPU; empty if it does not."""
    gres = subject.directives.last("gres")
    if command.name == "nvidia-smi" and command.certain and gres and list_gres_gpus(gres.value):
        return "The script runs nvidia-smi"
    names = [word.text.rpartition("/")[2] for word in command.words]
    given = (name for name in names if name == "--nv" or re.match(r"--gpus(?:=|\Z)", name))
    option = next(given, "") if _CONTAINERS & set(names[:_MOST_WORDS]) else ""
    if not option:
        return ""
    started = [one for one in subject.started if one.launch.line == command.line]
    works = not started or any(one.python and _works_on_gpus(one.python) for one in started)
    says_cpu = _NAMES_CPU.search(subject.path.lower().rpartition("/")[2])
    return f"The container gets `{option}`" if works and not says_cpu else ""


def _works_on_gpus(python: PythonScript) -> bool:
    """Tell whether a script, with its modules, trains or runs a model on a GPU if there is one."""
    text = f"{python.text}\n{python.neighbours}"
    return bool(_WORKS_ON_GPUS.search(text) and _LEARNS.search(text))


RULES = (
    Rule(
        code="E118",
        title="no GPUs requested",
        severity=ADVICE,
        check=find_no_gpus,
        why="Slurm gives a job only the GPUs that it requests, except on clusters that allocate "
        "whole nodes.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-task=16
 #SBATCH --nodes=1
+#SBATCH --gpus-per-node=2
 torchrun --standalone --nproc_per_node=2 train.py    # <- here
 --- train.py
 import os
 import torch
 import torch.distributed as dist
 torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
 dist.init_process_group("nccl")
 dist.destroy_process_group()
""",
    ),
)
