"""How many processes a launch starts, and what its Python does with GPUs."""

from functools import lru_cache

from echelon.lint.launches import Launch, Launcher
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript

_STARTS_OTHERS = pattern(
    r"\b(?:spawn|start_processes|submitit|ray|[Ll]ightning|pytorch_lightning|accelerate|Accelerator|"
    r"deepspeed|horovod|subprocess|Process|ProcessPoolExecutor|elastic_launch|DataParallel|"
    r"device_map|vllm|notebook_launcher|dask|mpi4py|jax|tensorflow|keras|TorchTrainer|"
    r"transformers|[Ff]abric|composer|echelon|elastic_launcher|launch|torchrunx|tensor_parallel)\b"
)
"""Words in scripts that use several GPUs without one process per GPU."""
_SEVERAL_DEVICES = pattern(
    r"(?i)cuda:[1-9]|\bcuda\(1\)|\.to\(1\)|device_map|rank\s*\*\s*[2-9]|\bdev(?:ice)?_?1\b|"
    r"device_ids\s*=\s*\[\s*\w+\s*,|(?:model|pipeline|tensor)_?parallel|Pipeline(?:Stage|Parallel)"
)
"""Text that suggests that one process of a script uses several GPUs."""
_USES_GPUS = pattern(r"\bcuda\b|\bAccelerator\(|\bTrainer\(|\bFabric\(")


def ranks_per_launch(launch: Launch) -> int | None:
    """Return the number of processes that a launcher starts; 1 without a launcher."""
    launcher, gpus = launch.launcher, launch.amounts.gpus_per_node
    if launcher is None:
        return 1
    if launcher.kind == "accelerate":
        return _ranks_of_accelerate(launcher)
    option = launcher.option("nproc-per-node", "num-gpus")
    if option is None and launcher.kind == "deepspeed":  # it uses all GPUs that it sees
        chosen = {"include", "exclude", "i", "e"} & set(launcher.options)
        return gpus or None if launcher.complete and not chosen else None
    if option is None:
        return 1 if launcher.complete else None
    return gpus if option.text in ("gpu", "auto") else option.number


def _ranks_of_accelerate(launcher: Launcher) -> int | None:
    """Return the number of processes per machine; accelerate counts those of all machines."""
    total, machines = launcher.option("num-processes"), launcher.option("num-machines")
    count = 1 if machines is None else machines.number
    if total is None or not total.number or not count or not launcher.complete:
        return None
    return total.number // count if total.number % count == 0 else None


def spawns(python: PythonScript | None) -> bool:
    """Tell whether a script starts one process per GPU itself, with mp.spawn."""
    return python is not None and bool(python.calls("spawn", "start_processes"))


@lru_cache(maxsize=64)
def may_use_all_gpus(python: PythonScript) -> bool:
    """Tell whether one process of a script may use all GPUs of a node."""
    return bool(_STARTS_OTHERS.search(python.whole))


@lru_cache(maxsize=64)
def uses_several_gpus(python: PythonScript | None) -> bool:
    """Tell whether one rank of a script may use several GPUs, as in model parallelism."""
    return python is not None and bool(_SEVERAL_DEVICES.search(python.whole))


def uses_gpus(python: PythonScript) -> bool:
    """Tell whether a script, or a module that it imports, says that its ranks use GPUs."""
    cuda = _USES_GPUS.search(python.whole) and not python.mentions("gloo")
    return python.mentions("nccl") or bool(cuda)
