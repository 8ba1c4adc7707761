"""E203: GPUs that no process uses, and tasks that nothing starts; part of E201."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.bash import Command, Word
from echelon.lint.facts import (
    is_alone,
    may_use_all_gpus,
    ranks_per_launch,
    sets_visible_devices,
    spawns,
    uses_several_gpus,
)
from echelon.lint.files import Place
from echelon.lint.harmless import is_harmless
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.python_script import PythonScript, last_name
from echelon.lint.rule import ADVICE, WARNING, Hit, Rule
from echelon.lint.rules import unused_gpus
from echelon.lint.rules.wanted import OF_OUTPUT
from echelon.lint.subject import Started, Subject

_CONTAINER = pattern(r"\b(?:apptainer|singularity) (?:exec|run)\b")
_GIVES_GPUS = pattern(
    r"--nv(?:ccli)?\b|(?:APPTAINER|SINGULARITY)\w*_NV(?:CCLI)?\b|(?i:rocm|lumi|/opt/cray|frontier|mi\d{3})"
)
"""Text of scripts whose containers see GPUs; those of AMD need no option."""
_COUNT_OF_GPUS = pattern(r"\b(gpu(?::[A-Za-z][\w.-]*)?):\d+\b")
_RETURNS = frozenset({"screen", "tmux", "docker", "podman", "ray", "nohup", "setsid"})
"""Programs that may return before what they start has ended."""
_MOST_ARGUMENTS = 50
_NUMBERS = pattern(r"\d{1,2}(?:,\d{1,2}){0,15}")
_SEVERAL_TASKS = 2
_ONE_OF_NODE = pattern(r"(?i)gh200|gb200")
"""Types of GPUs whose nodes often have only one."""
_SEVERAL = pattern(
    r"(?i)(?<!single.)gpus?\b|devices?\b|nproc|num_processes|ddp|distributed|parallel|CUDA_VISIBLE|vllm|ray\b|"
    r"world_size|MASTER_|torchrun|echelon|accelerate|deepspeed|fsdp|tensor_parallel|"
    r"device_map"
)
"""Text of scripts that may use several GPUs."""
_PLACES_MODEL = pattern(
    r"device_map|parallel|cuda:\d|CUDA_VISIBLE|deepspeed|pytorch_lightning|lightning|\.spawn\(|"
    r"load_in_[48]bit|BitsAndBytes|launcher"
)
"""Text of scripts that choose the devices of their model themselves."""
_TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer")
_WITH_TRAINERS = ("transformers", "trl")
_USES_TASKS = pattern(
    r"(?i)srun|NTASKS|NPROCS|mpi|parallel|xargs|nproc|horovod|&[ \t]*$|dask|ray\b|-np\b"
)


def _is_replicated(python: PythonScript) -> bool:
    """Tell whether a Trainer of transformers copies a model to all GPUs of its process."""
    names = {last_name(call.func) for call in python.calls(*_TRAINERS)}
    imported = {
        alias.name
        for node in python.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_WITH_TRAINERS)
        for alias in node.names
    }
    return bool(names & imported) and not _PLACES_MODEL.search(python.text + python.neighbours)


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
    launched = any(one.launch.launcher or one.launch.mpi for one in subject.started)
    if launched or any(map(_USES_TASKS.search, subject.code)):
        return
    yield Hit(
        at=Place(subject.path, total.line),
        what=f"The script starts no step, so one process runs. Slurm may spread the CPUs of the "
        f"{total.value} tasks over several nodes, and the process gets those of the first.",
        fix=f"#SBATCH --ntasks=1\n#SBATCH --cpus-per-task={total.value}",
        severity=ADVICE,
    )


def _single_process(subject: Subject) -> Iterator[Hit]:
    """Find a single process in a job with several GPUs, if nothing says that it uses them."""
    gpus, started = subject.job.gpus_per_node or 0, subject.started
    if not subject.is_job or gpus < 2 or subject.job.several_nodes or len(started) != 1:
        return
    launch, python = started[0].launch, started[0].python
    tasks = 1 if launch.srun is None else launch.amounts.tasks
    if launch.launcher or launch.mpi or launch.elsewhere or tasks != 1:
        return
    texts = [f"{a.name}={a.value.text}" for a in subject.assignments]
    texts += [command.text for command in subject.commands if not is_harmless(command)]
    if any(map(_SEVERAL.search, texts)) or any(c.background for c in subject.commands):
        return
    one_process = f"The job has {gpus} GPUs, and this command starts one process."
    if python and _is_replicated(python):
        yield Hit(
            at=launch,
            what=f"{one_process} The Trainer of transformers then uses torch.nn.DataParallel, "
            "which is slower than one process per GPU and keeps more on GPU 0.",
            fix=f"torchrun --standalone --nproc_per_node={gpus} …  # instead of python",
            severity=ADVICE,
        )
    elif launch.srun is None and not (python and _may_use_several(python)):
        yield Hit(
            at=launch,
            what=f"{one_process} Unless it uses several GPUs itself, the others are idle.",
            fix=f"{_one_gpu(subject)}  # or start one process per GPU",
            severity=ADVICE,
        )


def _may_use_several(python: PythonScript) -> bool:
    """Tell whether one process of a script may use all GPUs of the job."""
    several = may_use_all_gpus(python) or uses_several_gpus(python)
    return several or spawns(python) or python.is_distributed


def _exclusive(subject: Subject) -> Iterator[Hit]:
    """Find a job that takes a whole node, and requests one GPU."""
    item = subject.directives.last("exclusive")
    if item is None or item.value or subject.job.gpus_per_node != 1 or not subject.is_job:
        return
    given = subject.directives.last("gres") or subject.directives.last("gpus-per-node")
    single = given is not None and _ONE_OF_NODE.search(given.value)
    if not single and not subject.may_have_several_nodes:
        yield Hit(
            at=Place(subject.path, item.line),
            what="If the node has more than one GPU, the others are idle: the job takes the whole "
            "node, but requests one.",
            fix="delete `--exclusive`, or request and use all GPUs of the node",
            severity=ADVICE,
        )


def find_idle_gpus(subject: Subject) -> Iterator[Hit]:
    unused = [
        *unused_gpus.find_hidden_gpus(subject),
        *unused_gpus.find_cpu_programs(subject),
        *unused_gpus.find_installations(subject),
    ]
    yield from unused
    if unused:
        return
    yield from _single_process(subject)
    yield from _exclusive(subject)
    yield from _without_gpus_inside(subject)
    yield from _in_sequence(subject)
    if sets_visible_devices(subject) and _may_share(subject):
        return
    for one in subject.started:
        launch, amounts = one.launch, one.launch.amounts
        gpus, tasks = amounts.gpus_per_node, amounts.tasks_per_node
        if launch.mpi or launch.elsewhere or not is_alone(subject, launch) or not gpus:
            continue
        ranks = ranks_per_launch(launch)
        tasks = tasks if launch.srun is not None else 1
        if not ranks or not tasks or ranks * tasks >= gpus or _has_alternative(subject, one):
            continue
        if launch.launcher is None and (
            one.python is None
            or not one.python.is_distributed
            or spawns(one.python)
            or may_use_all_gpus(one.python)
        ):
            continue
        if not uses_several_gpus(one.python) and not _leaves_one(launch, gpus - ranks * tasks):
            yield Hit(
                at=launch,
                what=f"The job uses only {ranks * tasks} of {gpus} GPUs on each node. The others "
                "are idle.",
                fix=_more_ranks(subject, launch, gpus),
            )


def _more_ranks(subject: Subject, launch: Launch, gpus: int) -> str:
    """Return how all GPUs are used, or how to request only one for one process."""
    if launch.launcher is None:
        return f"#SBATCH --ntasks-per-node={gpus}  # and start the script with srun"
    of_all = {
        "accelerate": f"--num_processes={gpus * (launch.amounts.nodes or 1)}",
        "deepspeed": f"--num_gpus={gpus}",
    }
    more = of_all.get(launch.launcher.kind, f"--nproc_per_node={gpus}")
    given = launch.launcher.option("nproc-per-node", "nproc_per_node", "num-processes", "num-gpus")
    if given is not None and given.number == 1:
        return f"{_one_gpu(subject)}  # or {more}"
    return more


def _one_gpu(subject: Subject) -> str:
    """Return the request of one GPU for each node, with the option that the job has."""
    gres, total = map(subject.directives.last, ("gres", "gpus"))
    each = subject.directives.last("gpus-per-node")
    if gres and _COUNT_OF_GPUS.search(gres.value):
        return "#SBATCH --gres=" + _COUNT_OF_GPUS.sub(r"\1:1", gres.value)
    if total and not each and subject.job.nodes == 1:
        return "#SBATCH --gpus=" + re.sub(r"[0-9]+$", "1", total.value)
    return "#SBATCH --gpus-per-node=1"


def _in_sequence(subject: Subject) -> Iterator[Hit]:
    """Find programs that run one after the other on different GPUs, each on a part of them."""
    commands = subject.batch.commands if subject.batch else ()
    chosen = [(c, _devices(c)) for c in commands if c.certain and _devices(c)]
    gpus = subject.job.gpus_per_node
    if len(chosen) < 2 or not subject.is_job or any(c.background for c in subject.commands):
        return
    (first, before), (second, after) = chosen[:2]
    if before & after or (gpus is not None and len(before) >= gpus > 0):
        return
    returns = any(_RETURNS & {word.text for word in c.words} for c in subject.commands)
    if returns or _shares_files(first, second):
        return
    yield Hit(
        at=first,
        what=f"This program uses {_named(before)}, and the one in line {second.line}, for "
        f"{_named(after)}, starts only after it has ended.",
        fix="if they do not depend on each other, end both with `&`, then wait for each",
        severity=ADVICE,
    )


def _named(devices: frozenset[str]) -> str:
    *others, last = sorted(devices, key=int)
    return f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"


def _shares_files(first: Command, second: Command) -> bool:
    """Tell whether a command may read what an earlier one writes."""
    before, after = set(_values(first)), set(_values(second))
    inputs = {(option, value) for option, value in before & after if not OF_OUTPUT.search(option)}
    written = {value.strip("/") for _, value in before - inputs}
    read = {value.strip("/") for _, value in after - inputs}
    return any(
        one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
        for one in written
        for other in read
    )


def _values(command: Command) -> Iterator[tuple[str, str]]:
    """Yield the values of options, and other arguments that are paths, but not scripts."""
    before = ""
    for word in command.arguments[:_MOST_ARGUMENTS]:
        name, equals, value = word.text.partition("=")
        option, value = (name, value) if equals else (before, word.text)
        before = "" if equals or not name.startswith("-") else name
        named = option or "/" in value or "." in value
        number = value.lower() == value.upper()
        if named and not number and value[0] != "-" and not value.endswith((".py", ".sh")):
            yield option, value.removeprefix("./")


def _devices(command: Command) -> frozenset[str]:
    """Return the GPUs that a command chooses for itself; empty if it chooses none."""
    values = [a.value.text for a in command.assignments if a.name == "CUDA_VISIBLE_DEVICES"]
    words = [word.text for word in command.words]
    values += [after for option, after in pairwise(words) if option in ("--gpu_ids", "--gpu-ids")]
    value = values[0] if values else ""
    return frozenset(value.split(",")) if _NUMBERS.fullmatch(value) else frozenset()


def _may_share(subject: Subject) -> bool:
    """Tell whether other programs may use the other GPUs, or E409 finds the same."""
    chosen = subject.assigned("CUDA_VISIBLE_DEVICES")
    beside = any(c.background and not is_harmless(c) for c in subject.commands)
    return beside or not chosen or any(a.value.known for a in chosen)


def _without_gpus_inside(subject: Subject) -> Iterator[Hit]:
    """Find containers that see no GPUs, if all programs of the job run in such ones."""
    text = "\n".join(shell.text for shell in subject.shells)
    if not subject.is_job or not subject.job.gpus_per_node or _GIVES_GPUS.search(text):
        return
    runs = [c for c in subject.commands if _CONTAINER.search(c.text)]
    others = [one for one in subject.started if not _CONTAINER.search(one.launch.command.text)]
    unknown = (word for c in runs for word in c.words[2:6] if not word.known)
    if runs and not others and all("/" in word.text for word in unknown):
        yield Hit(
            at=runs[0],
            what="The container has no GPUs, because `--nv` is missing. The GPUs of the job are "
            "idle unless the site's configuration adds them.",
            fix=_CONTAINER.sub(r"\g<0> --nv", runs[0].text.split(" -")[0])[:60] + " …",
            severity=ADVICE,
        )


def _leaves_one(launch: Launch, idle: int) -> bool:
    """Tell whether a program keeps a GPU for the inference server that it starts."""
    words = (word.text.lower() for word in _program_words(launch))
    return idle == 1 and any("vllm" in word or "grpo" in word for word in words)


def _program_words(launch: Launch) -> Iterator[Word]:
    yield from (launch.program,) if launch.program else ()
    yield from launch.arguments


def _has_alternative(subject: Subject, one: Started) -> bool:
    """Tell whether a launch is in a branch, and another branch starts the same program."""
    program = one.launch.program
    others = (other.launch for other in subject.started if other is not one)
    return not one.launch.command.certain and any(
        program is not None and other.program is not None and other.program.text == program.text
        for other in others
        if not other.command.certain
    )


RULES = (
    Rule(
        code="E203",
        title="idle GPUs",
        severity=WARNING,
        check=find_idle_gpus,
        why="Each rank uses one GPU. Requested GPUs count toward your usage even if they are idle.",
        example="""\
 #!/bin/bash
 #SBATCH --cpus-per-gpu=8
 #SBATCH --nodes=1
 #SBATCH --gpus-per-node=4
-torchrun --standalone --nproc_per_node=2 train.py    # <- here
+torchrun --standalone --nproc_per_node=4 train.py
""",
    ),
)
