"""GPUs and tasks that a script requests, and starts one process; part of E201 and E203."""

import re
from collections.abc import Iterator

from echelon.lint.facts import may_use_all_gpus, spawns, uses_several_gpus
from echelon.lint.files import Place
from echelon.lint.patterns import pattern
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.subject import Subject

_SEVERAL_TASKS = 2
_SEVERAL = pattern(
    r"(?i)gpus?\b|devices?\b|nproc|num_processes|ddp|distributed|parallel|CUDA_VISIBLE|vllm|ray\b|"
    r"world_size|MASTER_|torchrun|echelon|accelerate|deepspeed|fsdp|&[ \t]*$|tensor_parallel|"
    r"device_map"
)
"""Text of scripts that may use several GPUs."""
_USES_TASKS = pattern(
    r"(?i)srun|NTASKS|NPROCS|mpi|parallel|xargs|nproc|horovod|&[ \t]*$|dask|ray\b|-np\b"
)


def find_unused_tasks(subject: Subject) -> Iterator[Hit]:
    """Find tasks that nothing starts, and that may be on other nodes than the process."""
    total = subject.directives.last("ntasks")
    if (
        total is None
        or not re.fullmatch(r"[0-9]{1,6}", total.value)
        or int(total.value) < _SEVERAL_TASKS
    ):
        return
    if subject.directives.last("nodes") or not subject.started:
        return
    code = [line for shell in subject.shells for line in shell.text.split("\n")]
    launched = any(one.launch.launcher or one.launch.mpi for one in subject.started)
    if launched or any(_USES_TASKS.search(line) for line in code if line.lstrip()[:1] != "#"):
        return
    yield Hit(
        at=Place(subject.path, total.line),
        what=f"The script starts no step, so one process runs. Slurm may spread the CPUs of the "
        f"{total.value} tasks over several nodes, and the process gets those of the first.",
        fix=f"#SBATCH --ntasks=1\n#SBATCH --cpus-per-task={total.value}",
        severity=ADVICE,
    )


def find_single_process(subject: Subject) -> Iterator[Hit]:
    """Find a single process in a job with several GPUs, if nothing says that it uses them."""
    gpus, started = subject.job.gpus_per_node or 0, subject.started
    code = [line for shell in subject.shells for line in shell.text.split("\n")]
    if not subject.is_job or gpus < 2 or subject.job.several_nodes or len(started) != 1:
        return
    one = started[0]
    if one.launch.launcher or one.launch.mpi or one.launch.elsewhere or one.launch.srun is not None:
        return
    if any(_SEVERAL.search(line) for line in code if not line.lstrip().startswith("#")):
        return
    python = one.python
    if python and (may_use_all_gpus(python) or uses_several_gpus(python) or spawns(python)):
        return
    if python is None or not python.is_distributed:
        yield Hit(
            at=one.launch,
            what=f"The job has {gpus} GPUs, and this command starts one process. Unless it uses "
            "several GPUs itself, the others are idle.",
            fix="#SBATCH --gpus-per-node=1  # or start one process per GPU",
            severity=ADVICE,
        )
