"""Facts that several rules share, such as the number of processes of a launch."""

import re
from functools import lru_cache
from itertools import zip_longest

from echelon.core.shell import Shell as Programs
from echelon.errors import MissingProgramError, TimedOutError
from echelon.lint.bash import Shell
from echelon.lint.launches import Launch, Launcher
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript
from echelon.lint.subject import Started, Subject

PER_TASK = frozenset({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"})
"""Variables that differ between tasks; they are 0 in the job script."""
_STARTS_OTHERS = pattern(
    r"\b(spawn|start_processes|submitit|ray|Lightning|lightning|pytorch_lightning|accelerate|"
    r"Accelerator|deepspeed|horovod|subprocess|Process|ProcessPoolExecutor|elastic_launch|"
    r"DataParallel|device_map|vllm|notebook_launcher|dask|mpi4py|jax|tensorflow|keras|TorchTrainer|"
    r"transformers|fabric|Fabric|composer|echelon|elastic_launcher|launch|torchrunx|tensor_parallel)\b"
)
"""Words in scripts that use several GPUs without one process per GPU."""
_SEVERAL_DEVICES = pattern(
    r"cuda:[1-9]|\bcuda\(1\)|\.to\(1\)|device_map|rank\s*\*\s*[2-9]|\bdev(ice)?_?1\b|"
    r"device_ids\s*=\s*\[\s*\w+\s*,|(model|pipeline|tensor)_?parallel|PipelineStage|PipelineParallel",
    re.IGNORECASE,
)
"""Text that suggests that one process of a script uses several GPUs."""

_USES_GPUS = pattern(r"\bcuda\b|\bAccelerator\(|\bTrainer\(|\bFabric\(")
CONTAINER = pattern(r"\b(?:singularity|apptainer|docker|podman|shifter|enroot)\b|--container-")
"""Programs and options that start containers."""
_HARMLESS_SOURCES = pattern(
    r"activate|conda|mamba|bashrc|profile|lmod|modules|setvars|bash_profile|/init/|spack"
)
_TIMEOUT_S = 2.0


def ranks_per_launch(launch: Launch) -> int | None:
    """Return the number of processes that a launcher starts; 1 without a launcher."""
    if launch.launcher is None:
        return 1
    launcher, gpus = launch.launcher, launch.amounts.gpus_per_node
    if launcher.kind == "accelerate":
        return _ranks_of_accelerate(launcher)
    option = launcher.option("nproc-per-node", "nproc_per_node", "num-gpus")
    if option is None and launcher.kind == "deepspeed":  # it uses all GPUs that it sees
        chosen = {"include", "exclude", "i", "e"} & set(launcher.options)
        return gpus or None if launcher.complete and not chosen else None
    if option is None:
        plain = launcher.kind in ("torchrun", "launch") and launcher.complete
        return 1 if plain else None
    if option.text in ("gpu", "auto"):
        return gpus
    return option.number


def _ranks_of_accelerate(launcher: Launcher) -> int | None:
    """Return the number of processes per machine; accelerate counts those of all machines."""
    total, machines = launcher.option("num-processes"), launcher.option("num-machines")
    count = 1 if machines is None else machines.number
    if total is None or not total.number or not count or not launcher.complete:
        return None
    return total.number // count if total.number % count == 0 else None


def runs_always(launch: Launch) -> bool:
    """Tell whether the job always runs a command."""
    return launch.command.certain or launch.command.looped or bool(launch.command.piped_into)


def spawns(python: PythonScript | None) -> bool:
    """Tell whether a script starts one process per GPU itself, with mp.spawn."""
    return python is not None and bool(python.calls("spawn", "start_processes"))


@lru_cache(maxsize=64)
def may_use_all_gpus(python: PythonScript) -> bool:
    """Tell whether one process of a script may use all GPUs of a node."""
    return bool(_STARTS_OTHERS.search(python.text) or _STARTS_OTHERS.search(python.neighbours))


@lru_cache(maxsize=64)
def uses_several_gpus(python: PythonScript | None) -> bool:
    """Tell whether one rank of a script may use several GPUs, as in model parallelism."""
    return python is not None and bool(
        _SEVERAL_DEVICES.search(python.text) or _SEVERAL_DEVICES.search(python.neighbours)
    )


def uses_gpus(python: PythonScript) -> bool:
    """Tell whether a script, or a module that it imports, says that its ranks use GPUs."""
    return python.mentions("nccl") or bool(
        _USES_GPUS.search(python.text + python.neighbours) and not python.mentions("gloo")
    )


def may_have_several_ranks(subject: Subject, python: PythonScript) -> bool:
    """Tell whether a script may run as more than one rank; True if its launch is not known."""
    started = [one for one in subject.started if one.python is python]
    return not started or any(_may_be_several(one) for one in started)


def _may_be_several(one: Started) -> bool:
    launch, amounts = one.launch, one.launch.amounts
    if launch.mpi or launch.elsewhere:
        return True
    if launch.launcher is None and one.python is not None and may_use_all_gpus(one.python):
        return amounts.gpus_per_node != 1 or amounts.several_tasks
    tasks = amounts.tasks if launch.srun is not None else 1
    if launch.launcher is None:
        return tasks != 1
    nodes = launch.launcher.option("nnodes", "num-machines")
    several = nodes is not None and nodes.number != 1
    return several or tasks != 1 or ranks_per_launch(launch) != 1


def may_be_on_other_nodes(launch: Launch) -> bool:
    """Tell whether a launch may start ranks on other nodes than the first."""
    options = launch.launcher.options if launch.launcher is not None else {}
    hosts = bool({"hostfile", "H"} & set(options))
    return hosts or launch.srun is not None or launch.mpi or launch.elsewhere


def processes_per_task(one: Started) -> int | None:
    """Return the number of ranks per task."""
    if one.launch.launcher is not None:
        return ranks_per_launch(one.launch)
    if one.python is None:
        return None
    if spawns(one.python):
        return one.launch.amounts.gpus_per_node or None
    return None if may_use_all_gpus(one.python) else 1


def is_training(subject: Subject, one: Started) -> bool:
    """Tell whether the ranks of a launch form one process group."""
    if one.launch.launcher is not None:
        return one.launch.launcher.kind != "accelerate" or one.launch.amounts.several_nodes
    if one.python is not None:
        return one.python.is_distributed
    return bool(subject.assigned("MASTER_ADDR") or subject.assigned("MASTER_PORT"))


def is_alone(subject: Subject, launch: Launch) -> bool:
    """Tell whether nothing else in the script runs at the same time as a launch."""
    return not launch.command.background and not subject.starts_in_background


def reads_variables(subject: Subject) -> bool:
    """Tell whether ranks read MASTER_ADDR and similar; launchers set their own values."""
    launches = [one.launch for one in subject.started]
    return not launches or any(launch.launcher is None for launch in launches)


def sets_visible_devices(subject: Subject) -> bool:
    return any("CUDA_VISIBLE_DEVICES" in one.launch.variables for one in subject.started) or bool(
        subject.assigned("CUDA_VISIBLE_DEVICES")
    )


def slurm_version(programs: Programs) -> tuple[int, int] | None:
    """Return the version of this machine's Slurm, such as (23, 11); None if it has none."""
    try:
        done = programs.run(["sinfo", "--version"], timeout_s=_TIMEOUT_S)
    except (MissingProgramError, TimedOutError, OSError):
        return None
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else None


def stops_at_unset(batch: Shell, line: int) -> bool:
    """Tell whether `set -u` is in effect at a line of the job script."""
    state = batch.text.startswith("#!") and bool(re.match(r"#!\S+\s+-\w*u", batch.text))
    for command in batch.commands:
        if command.name == "set" and command.line <= line and command.certain:
            for word, after in zip_longest(command.arguments, command.arguments[1:]):
                short = re.fullmatch(r"([-+])[A-Za-z]*u[A-Za-z]*", word.text)
                if short or (after is not None and after.text == "nounset"):
                    state = word.text.startswith("-")
    return state


def sources_others(script: Subject | Shell) -> bool:
    """Tell whether a script, or one of its shells, sources a file that may set variables."""
    return any(
        command.name in ("source", ".") and not _HARMLESS_SOURCES.search(command.text)
        for command in script.commands
    )
