"""E401 to E404: the CPUs of a task and the processes that share them."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.bash import Assignment, Where
from echelon.lint.edits import insert_line
from echelon.lint.facts import processes_per_task, slurm_version, spawns
from echelon.lint.files import Place
from echelon.lint.request import read_step
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules import no_cpus
from echelon.lint.subject import Subject
from echelon.lint.workers import count_workers

_FIRST_LOSING, _LAST_LOSING = (22, 5), (23, 2)
"""Versions of Slurm in which srun does not inherit --cpus-per-task."""
_INHERIT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
_MANY_PER_CPU = 4
"""Workers per CPU that are too many even if they often wait for the file system."""
_CPUS_OF_NODE = frozenset({"SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"})


def find_lost_cpus(subject: Subject) -> Iterator[Hit]:
    cpus = subject.job.cpus_per_task
    exclusive = subject.directives.last("exclusive")
    if not cpus or cpus < 2 or "SRUN_CPUS_PER_TASK" in subject.exported or exclusive:
        return
    for one in subject.started:
        options, command = one.launch.srun, one.launch.command
        if options is None or command.where is Where.TASK:
            continue
        if {"cpus-per-task", "cpus-per-gpu", "exclusive", "whole"} & set(options):
            continue
        version = slurm_version(subject.programs)
        if version is None or _FIRST_LOSING <= version <= _LAST_LOSING:
            yield Hit(
                at=command,
                what="In Slurm 22.05 to 23.02, srun does not inherit `--cpus-per-task` from "
                f"sbatch. Each task gets 1 CPU instead of {cpus}.",
                fix=f"{_INHERIT}  # before srun",
                edits=(insert_line(max(i.line for i in subject.directives.items) + 1, _INHERIT),),
            )
        return  # the line applies to all steps


def find_too_many_workers(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        cpus, processes = one.launch.cpus, processes_per_task(one)
        if not cpus or not processes or one.launch.mpi:
            continue
        workers = count_workers(subject, one)
        total = workers.count * processes
        if total > cpus:
            each = counted(workers.count, "data loader worker")
            each = f"{processes} processes with {each} each" if processes > 1 else each
            yield Hit(
                at=Place(workers.path, workers.line),
                what=f"{each} share {counted(cpus, 'CPU')}. They slow each other down if they "
                "decode or transform the data.",
                fix=f"{workers.setting}{max(1, cpus // processes)}",
                severity=None if total >= _MANY_PER_CPU * cpus else ADVICE,
            )
    yield from no_cpus.find_too_many_workers(subject)


def find_too_few_cpus(subject: Subject) -> Iterator[Hit]:
    given, told = subject.directives.last("cpus-per-task"), False
    for one in subject.started:
        cpus, processes = one.launch.cpus, processes_per_task(one)
        if given and cpus and processes and processes > cpus:
            told = True
            yield Hit(
                at=Place(subject.path, given.line),
                what=f"{processes} processes in each task share {counted(cpus, 'CPU')} and slow "
                "each other down.",
                fix=f"#SBATCH --cpus-per-task={processes}  # or more, as far as nodes have them",
            )
    if not told:
        yield from _fewer_than_gpus(subject)
    yield from _too_many_threads(subject)
    yield from no_cpus.find_too_few_cpus(subject)


def _fewer_than_gpus(subject: Subject) -> Iterator[Hit]:
    """Find a job that requests fewer CPUs than GPUs on each node."""
    job, given = subject.job, subject.directives.last("cpus-per-task")
    cpus, gpus = (job.cpus_per_task or 0) * (job.tasks_per_node or 0), job.gpus_per_node or 0
    more = any(map(subject.directives.last, ("exclusive", "mincpus", "constraint")))
    own = any({"cpus-per-task", "ntasks", "ntasks-per-node"} & set(o) for _, o, _ in subject.sruns)
    plain = any(one.launch.launcher is None for one in subject.started)
    if given and not more and not own and plain and 0 < cpus < gpus:
        yield Hit(
            at=Place(subject.path, given.line),
            what=f"The job has {gpus} GPUs and {counted(cpus, 'CPU')} on each node. The processes "
            "and threads that feed the GPUs share the CPUs, so the GPUs wait.",
            fix=f"#SBATCH --cpus-per-task={8 * gpus // (job.tasks_per_node or 1)}  # or as many as "
            "the cluster has for each GPU",
            severity=ADVICE,
        )


def _too_many_threads(subject: Subject) -> Iterator[Hit]:
    """Find ranks whose threads are more than the CPUs of their task."""
    owners = {id(own): one for one in subject.started for own in one.launch.command.assignments}
    for assignment in subject.assigned("OMP_NUM_THREADS"):
        yield from _threads_of_node(subject, assignment)
        threads, own = assignment.value.number, owners.get(id(assignment))
        read = own is not None or "OMP_NUM_THREADS" in subject.exported
        if not threads or threads < 2 or not read or not assignment.certain:
            continue
        asked = ("cpus-per-task", "cpus-per-gpu", "exclusive", "mincpus", "cores-per-socket")
        if (
            any(one.launch.srun is not None for one in subject.started)
            and not any(map(subject.directives.last, asked))
            and not any({*asked} & set(one.launch.srun or ()) for one in subject.started)
        ):
            yield Hit(
                at=assignment,
                what=f"Each task starts {threads} threads, but the job requests no CPUs for them. "
                "By default, srun gives each task one.",
                fix=f"#SBATCH --cpus-per-task={threads}",
                severity=ADVICE,  # some clusters allocate whole nodes
            )
        tasks = subject.job.tasks or 0
        if (
            subject.is_job
            and subject.started
            and all(one.launch.srun is None and not one.launch.mpi for one in subject.started)
            and not any(map(subject.directives.last, asked))
            and any(map(subject.directives.last, ("ntasks", "ntasks-per-node")))
            and not subject.job.several_nodes
            and 0 < tasks < threads
        ):
            yield Hit(
                at=assignment,
                what=f"{threads} threads share {counted(tasks, 'CPU')}, unless the cluster adds "
                "some or allocates whole nodes.",
                fix=f"#SBATCH --cpus-per-task={threads}",
                severity=ADVICE,
            )
        for one in [own] if own else subject.started:
            cpus, processes = one.launch.cpus, processes_per_task(one)
            if cpus and processes and threads * processes > cpus and not one.launch.mpi:
                each = f"{counted(processes, 'process')} with {threads} threads each"
                yield Hit(
                    at=assignment,
                    what=f"{each} share {counted(cpus, 'CPU')}. They slow each other down if the "
                    "threads have work.",
                    fix=f"export OMP_NUM_THREADS={max(1, cpus // processes)}",
                    severity=ADVICE,  # a program may compute on its GPU only
                )
                break


def _threads_of_node(subject: Subject, assignment: Assignment) -> Iterator[Hit]:
    """Find as many threads in each rank as its node has CPUs for all of them."""
    if not assignment.value.names & _CPUS_OF_NODE or not assignment.value.text.startswith("$"):
        return
    if "/" in assignment.value.text or "OMP_NUM_THREADS" not in subject.exported:
        return
    for _, options, _ in subject.sruns:
        tasks = read_step(subject.job, options).tasks_per_node or 0
        if tasks > 1:
            yield Hit(
                at=assignment,
                what=f"Each of the {tasks} tasks of a node starts a thread for every CPU of the "
                "job on the node. The tasks slow each other down.",
                fix="export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}",
            )
            return


def find_threads_of_spawned(subject: Subject) -> Iterator[Hit]:
    for one in subject.started:
        processes, cpus = processes_per_task(one), one.launch.cpus
        here = subject.exported | one.launch.variables
        if not spawns(one.python) or one.python is None or not processes or processes < 2:
            continue
        if "OMP_NUM_THREADS" in here or one.python.mentions("OMP_NUM_THREADS", "set_num_threads"):
            continue
        share = max(1, (cpus or processes) // processes)
        yield Hit(
            at=one.launch,
            what=f"Each of the {processes} spawned processes starts one thread per CPU of the "
            "task. The threads compete for the CPUs.",
            fix=f"export OMP_NUM_THREADS={share}",
        )


RULES = (
    Rule(
        code="E401",
        title="`--cpus-per-task` that srun does not inherit",
        severity=ADVICE,
        check=find_lost_cpus,
        why="In Slurm 22.05 to 23.02, srun requests one CPU per task unless told otherwise. In "
        "other versions, the `export` line is harmless. If this machine has Slurm, lint asks "
        "`sinfo --version` and reports nothing for other versions.",
        example="""\
 #!/bin/bash
 #SBATCH --ntasks-per-node=4
 #SBATCH --cpus-per-task=8
+export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
 srun python train.py    # <- here
""",
    ),
    Rule(
        code="E402",
        title="more data loader workers than CPUs",
        severity=WARNING,
        check=find_too_many_workers,
        why="Every rank starts its own workers. All ranks of a task share its CPUs. Fewer than "
        "four workers per CPU are advice, because they may wait for files most of the time.",
        example="""\
 #!/bin/bash
 #SBATCH --gpus-per-node=2
 #SBATCH --cpus-per-task=16
-torchrun --standalone --nproc_per_node=2 train.py --num-workers=32    # <- here
+torchrun --standalone --nproc_per_node=2 train.py --num-workers=8
""",
    ),
    Rule(
        code="E403",
        title="fewer CPUs than processes or GPUs",
        severity=WARNING,
        check=find_too_few_cpus,
        why="All processes of a task share the CPUs of `--cpus-per-task`. With torchrun or "
        "`mp.spawn`, these are all ranks of the node. Fewer CPUs than GPUs are advice.",
        example="""\
 #!/bin/bash
 #SBATCH --gpus-per-node=4
-#SBATCH --cpus-per-task=1    # <- here
+#SBATCH --cpus-per-task=32
 torchrun --standalone --nproc_per_node=4 train.py
""",
    ),
    Rule(
        code="E404",
        title="spawned processes without `OMP_NUM_THREADS`",
        severity=ADVICE,
        check=find_threads_of_spawned,
        why="torchrun limits the number of threads of each rank, but `mp.spawn` does not.",
        example="""\
 #!/bin/bash
 #SBATCH --gpus-per-node=4
 #SBATCH --cpus-per-task=32
+export OMP_NUM_THREADS=8
 python train.py    # <- here
 --- train.py
 import torch
 import torch.multiprocessing as mp


 def work(rank):
     torch.cuda.set_device(rank)


 if __name__ == "__main__":
     mp.spawn(work, nprocs=torch.cuda.device_count())
""",
    ),
)
