"""E213 and E214: numbers of processes that mpirun and Lightning compare with the job's."""

import ast
import re
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.bash import Command, Where
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, constant, keyword
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_MPI = frozenset({"mpirun", "mpiexec", "orterun"})
_MORE_SLOTS = pattern(r"oversubscribe|hostfile|machinefile|-host|-H\b|--map-by|rankfile|ppr:")
_OTHER_MPI = pattern(r"(?i)\b(?:intel-?mpi|impi|oneapi|mpich|mvapich2?|cray-mpich|parastation)\b")
"""Modules of MPI libraries that start as many processes as they are told to."""


def find_too_many_processes(subject: Subject) -> Iterator[Hit]:
    batch, total = subject.batch, subject.directives.last("ntasks")
    given = int(total.value) if total and re.fullmatch(r"[0-9]{1,9}", total.value) else None
    tasks = given or subject.job.tasks
    if batch is None or not subject.is_job or not tasks or subject.directives.several:
        return
    if any(_OTHER_MPI.search(c.text) for c in batch.commands if c.name in ("module", "ml")):
        return
    yield from _large_steps(subject, tasks)
    for command in batch.commands:
        count = _processes(command)
        if count and count > tasks and not _MORE_SLOTS.search(command.text):
            yield Hit(
                at=command,
                what=f"{command.name} starts {count} processes, but the job has "
                f"{counted(tasks, 'task')}. Open MPI fails with 'not enough slots available'.",
                fix=f"#SBATCH --ntasks={count}",
            )


def _large_steps(subject: Subject, tasks: int) -> Iterator[Hit]:
    """Find steps with more tasks than the job has CPUs."""
    cpus, nodes = subject.job.cpus_per_task or 1, subject.job.fewest_nodes
    whole = any(map(subject.directives.last, ("exclusive", "ntasks-per-node", "cpus-per-gpu")))
    for command, options, _ in subject.sruns if not whole and nodes in (None, 1) else ():
        count = options["ntasks"].number if "ntasks" in options else None
        free = {"overcommit", "oversubscribe", "O", "jobid", "hint", "threads-per-core"}
        if count and count > tasks * cpus and not free & set(options):
            yield Hit(
                at=command,
                what=f"The step has {count} tasks, but the job has {counted(tasks * cpus, 'CPU')}. "
                "srun fails with 'More processors requested than permitted'.",
                fix=f"#SBATCH --ntasks={count}",
                severity=ADVICE,  # some clusters allocate whole nodes
            )


def _processes(command: Command) -> int | None:
    """Return the number of processes that mpirun starts; None if it is not given or not known."""
    if command.name not in _MPI or command.where is not Where.BATCH:
        return None
    for option, value in zip(command.arguments, command.arguments[1:], strict=False):
        if option.text in ("-n", "-np", "--np", "-c"):
            return value.number
    return None


def find_lightning_numbers(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        launch, python = one.launch, one.python
        if python is None or launch.launcher is not None or launch.mpi:
            continue
        if launch.srun is None and not subject.directives.last("ntasks-per-node"):
            continue  # Lightning compares only what Slurm tells the process
        if not re.search(r"import (pytorch_)?lightning|from (pytorch_)?lightning", python.text):
            continue
        for call in python.calls("Trainer"):
            given = {
                "devices": ("--ntasks-per-node", launch.amounts.tasks_per_node),
                "num_nodes": ("--nodes", launch.amounts.nodes),
            }
            for name, (option, amount) in given.items():
                number = _literal(python, call, name)
                if number and amount and number != amount:
                    yield Hit(
                        at=python.at(call),
                        what=f"The Trainer has `{name}={number}`, but the step has `{option}="
                        f"{amount}`. Lightning compares them and raises a ValueError.",
                        fix=f"#SBATCH {option}={number}",
                    )


def _literal(python: PythonScript, call: ast.Call, name: str) -> int | None:
    """Return an argument that is a positive number, written in the call."""
    if any(given.arg is None for given in call.keywords) or python.mentions("LightningEnvironment"):
        return None
    value = constant(keyword(call, name))
    return value if type(value) is int and value > 0 else None


RULES = (
    Rule(
        code="E213",
        title="more MPI processes than tasks",
        severity=WARNING,
        check=find_too_many_processes,
        why="In a job, Open MPI starts at most one process per task, unless it is given a list of "
        "hosts or `--oversubscribe`.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-#SBATCH --ntasks-per-node=1
+#SBATCH --ntasks-per-node=4
 mpirun -n 8 python train.py    # <- here
""",
    ),
    Rule(
        code="E214",
        title="numbers of the Lightning Trainer that differ from the job's",
        severity=WARNING,
        check=find_lightning_numbers,
        why="Under srun, Lightning starts no processes itself. It expects one task per device, and "
        "stops if `devices` or `num_nodes` differ from the request.",
        example="""\
 #!/bin/bash
 #SBATCH --nodes=2
-#SBATCH --ntasks-per-node=1
+#SBATCH --ntasks-per-node=4
 #SBATCH --gpus-per-node=4
 srun python train.py
 --- train.py
 import lightning
 trainer = lightning.Trainer(devices=4, num_nodes=2)    # <- here
""",
    ),
)
