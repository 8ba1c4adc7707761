"""Part of E402 and E403: jobs on GPUs that request no CPUs."""

from collections.abc import Iterator

from echelon.core.units import counted
from echelon.lint.bash import Command
from echelon.lint.facts import processes_per_task, ranks_per_launch, runs_always
from echelon.lint.patterns import pattern
from echelon.lint.request import count_gpus
from echelon.lint.rule import ADVICE, Hit
from echelon.lint.subject import Started, Subject
from echelon.lint.workers import count_workers

_ASKING = frozenset(
    {
        *("cpus-per-task", "cpus-per-gpu", "exclusive", "mincpus", "cores-per-socket"),
        *("extra-node-info", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
        *("tres-per-task", "sockets-per-node", "core-spec", "thread-spec"),
    }
)
"""Options that decide how many CPUs a job or a step gets, apart from its tasks."""
_TRAINS = pattern(r"(?i)(?:\A|[-_./])(?:train(?:ing|er)?|pre-?train(?:ing)?|fine-?tun(?:e|ing))\b")
"""The name of a program that trains."""
_NO_TRAINING = pattern(r"(?i)infer|eval|test|predict|data|prep|plot|split|download|tokenize")
"""Parts of names of programs that have to do with a training, but are none."""
_LEARNS = pattern(r"\.backward\(|\bTrainer\(|\btrainer\.(?:fit|train)\(")
_NO_PROGRAMS = frozenset({"echo", "printf", "mkdir", "cp", "mv", "cd", "ls", "tee", "cat", "touch"})
_UNLESS = "The job requests no CPUs. Unless the cluster adds some, "
_SEVERAL = 2
_MANY = 4
"""GPUs that are often a whole node."""


def find_too_many_workers(subject: Subject) -> Iterator[Hit]:
    """Find data loader workers that share the one CPU of a task. Part of E402."""
    if not _asks_no_cpus(subject):
        return
    for one in subject.started:
        cpus, workers = _cpus(subject, one), count_workers(subject, one).count
        processes = processes_per_task(one) or 1
        if cpus and workers >= _SEVERAL and workers * processes > cpus:
            each = counted(workers, "data loader worker")
            each = f"{processes} processes with {each} each" if processes > 1 else each
            yield Hit(
                at=one.launch,
                what=f"{_UNLESS}{each} share {_name(one, cpus)}.",
                fix=f"#SBATCH --cpus-per-task={max(_SEVERAL, workers * processes)}",
                severity=ADVICE,
            )
            return


def find_too_few_cpus(subject: Subject) -> Iterator[Hit]:
    """Find several ranks, several GPUs or a training with one CPU. Part of E403."""
    if not _asks_no_cpus(subject) or next(find_too_many_workers(subject), None) is not None:
        return
    for one in subject.started:
        cpus = _cpus(subject, one)
        ranks = ranks_per_launch(one.launch) if one.launch.launcher else 1
        if cpus and ranks and ranks > cpus and (ranks >= _MANY or not _may_be_whole(subject)):
            yield _too_few(one, f"{ranks} ranks share {_name(one, cpus)}", ranks * 4)
            return
    if subject.job.gpus_per_node != 0 and not _may_be_whole(subject):
        yield from _one_for_all(subject)


def _one_for_all(subject: Subject) -> Iterator[Hit]:
    """Find a training, or a program on several GPUs, that gets one CPU."""
    gpus = _gpus(subject) or 1
    for one in subject.started:
        several, trains = one.launch.amounts.several_tasks, _is_training(one)
        if _cpus(subject, one) != 1 or _has_alternatives(one):
            continue
        if trains:
            in_task = several and one.launch.srun is not None
            what = "each task of the training has one" if in_task else "the training has one"
            yield _too_few(one, what, 8 if in_task else 8 * gpus)
            return
        if gpus >= _SEVERAL and not several:
            what = f"the program has one for {counted(gpus, 'GPU')}"
            yield _too_few(one, what, 8 * gpus)
            return
    if subject.batch is None or subject.started or subject.job.tasks != 1:
        return
    command = next(filter(_names_training, subject.batch.commands), None)
    if command is not None:
        yield _too_few(command, "the training has one", 8 * gpus)


def _too_few(at: Started | Command, what: str, cpus: int) -> Hit:
    return Hit(
        at=at.launch if isinstance(at, Started) else at,
        what=f"{_UNLESS}{what}.",
        fix=f"#SBATCH --cpus-per-task={cpus}  # or as many as the cluster has for each GPU",
        severity=ADVICE,
    )


def _name(one: Started, cpus: int) -> str:
    return f"{counted(cpus, 'CPU')}{' in each task' if one.launch.srun is not None else ''}"


def _asks_no_cpus(subject: Subject) -> bool:
    """Tell whether a job gets one CPU for each of its tasks, as far as the script decides."""
    directives = subject.directives
    if not subject.is_job or directives.several:
        return False
    memory = directives.last("mem")
    whole = memory is not None and memory.value.strip("0KMGT") == ""
    asked = any(map(directives.last, _ASKING))
    return not (whole or asked or any(_ASKING & set(options) for _, options, _ in subject.sruns))


def _may_be_whole(subject: Subject) -> bool:
    """Tell whether GPUs may come with CPUs: nothing shows that jobs share the nodes."""
    last = subject.directives.last
    if last("constraint"):
        return True
    memory = any(map(last, ("mem", "mem-per-cpu", "mem-per-gpu")))
    return not memory and not _SEVERAL <= (_gpus(subject) or 1) < _MANY


def _gpus(subject: Subject) -> int | None:
    """Return the number of GPUs of a node, or of the job if only that is known."""
    total = subject.directives.last("gpus")
    return subject.job.gpus_per_node or (count_gpus(total.value) if total else None)


def _cpus(subject: Subject, one: Started) -> int | None:
    """Return the number of CPUs that a launch gets by default; None if it is not known."""
    if one.launch.mpi or one.launch.elsewhere:
        return None
    if one.launch.srun is not None:
        return 1
    given = any(map(subject.directives.last, ("ntasks", "ntasks-per-node")))
    return subject.job.tasks_per_node if given else 1


def _has_alternatives(one: Started) -> bool:
    """Tell whether a launch is one of several, of which the others may do the work."""
    return not runs_always(one.launch)


def _is_training(one: Started) -> bool:
    program = one.launch.program.text if one.launch.program is not None else ""
    learns = one.python is not None and bool(_LEARNS.search(one.python.text))
    return learns or _is_name_of_training(program)


def _names_training(command: Command) -> bool:
    words = [word.text for word in command.words[:6] if not word.text.startswith("-")]
    names = (word for word in words if "=" not in word and not word.startswith("$"))
    return command.name not in _NO_PROGRAMS and any(map(_is_name_of_training, names))


def _is_name_of_training(program: str) -> bool:
    name = program.removesuffix(".py").rpartition("/")[2]
    return bool(_TRAINS.search(name)) and not _NO_TRAINING.search(name)
