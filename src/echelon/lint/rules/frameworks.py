"""E213 and E214: numbers of processes that mpirun and Lightning compare with the job's."""

import ast
import re
from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.bash import Command, Where
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, constant, keyword, unparse
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.subject import Subject

_TWO = 2
_MPI = frozenset({"mpirun", "mpiexec", "orterun"})
_MORE_SLOTS = pattern(r"oversubscribe|hostfile|machinefile|-host|-H\b|--map-by|rankfile|ppr:")
_OTHER_MPI = pattern(r"(?i)\b(?:intel-?mpi|impi|oneapi|mpich|mvapich2?|cray-mpich|parastation)\b")
"""Modules of MPI libraries that start as many processes as they are told to."""

_IMPORTS_LIGHTNING = pattern(r"import (?:pytorch_)?lightning|from (?:pytorch_)?lightning")
_INTERACTIVE = frozenset({"bash", "interactive"})
"""Names of jobs in which Lightning ignores Slurm."""
_ALL = (-1, "-1", "auto")
_OTHER_ENVIRONMENT = ("LightningEnvironment", "SLURM_NTASKS", "SLURM_JOB_NAME", "plugins=")
_OTHER_STRATEGY = pattern(r"spawn|fork|notebook|dp$(?<!fsdp)(?<!ddp)")


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
    yield from _one_process(subject)
    for one in subject.started:
        launch, python = one.launch, one.python
        if python is None or launch.launcher is not None or launch.mpi:
            continue
        if launch.srun is None and not subject.directives.last("ntasks-per-node"):
            continue  # Lightning compares only what Slurm tells the process
        if not _IMPORTS_LIGHTNING.search(python.text):
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


def _one_process(subject: Subject) -> Iterator[Hit]:
    """Find a Trainer with several devices in a job of one task, which is its only process."""
    given, gpus = subject.directives.last("ntasks"), subject.job.gpus_per_node or 0
    name = subject.directives.last("job-name")
    text = "\n".join(shell.text for shell in subject.shells)
    if not given or subject.job.tasks != 1 or gpus < _TWO or "SLURM_NTASKS" in text:
        return
    if subject.directives.last("ntasks-per-node") or (name and name.value in _INTERACTIVE):
        return
    for one in subject.started:
        launch, python = one.launch, one.python
        alone = launch.srun is None and launch.launcher is None and not launch.mpi
        if python is None or not alone or launch.elsewhere or python.mentions(*_OTHER_ENVIRONMENT):
            continue
        for call in python.calls("Trainer") if _IMPORTS_LIGHTNING.search(python.text) else ():
            count = _devices(call, gpus)
            if count > 1:
                yield Hit(
                    at=launch,
                    what=f"Only one of the {count} processes that the Trainer expects runs. With "
                    "`--ntasks`, Lightning leaves it to srun to start them, which is not used. "
                    f"{counted(gpus - 1, 'GPU')} {'is' if gpus == _TWO else 'are'} idle.",
                    fix=f"#SBATCH --ntasks-per-node={count}  # instead of --ntasks=1, and:\n"
                    "srun python …",
                )
                return


def _devices(call: ast.Call, gpus: int) -> int:
    """Return the number of GPUs that a Trainer uses, each with a process; 0 if not known."""
    given, strategy = keyword(call, "devices"), constant(keyword(call, "strategy"))
    value = -1 if given is not None and unparse(given) == "-1" else constant(given)
    other = isinstance(strategy, str) and _OTHER_STRATEGY.search(strategy)
    written = keyword(call, "strategy") is None or isinstance(strategy, str)
    if other or not written or constant(keyword(call, "accelerator")) == "cpu":
        return 0
    if value in _ALL:
        return gpus
    return value if type(value) is int else 0


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
        "stops if `devices` or `num_nodes` differ from the request. With `--ntasks`, it starts "
        "none without srun either.",
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
