"""The resources that a job requests with #SBATCH, and those that a step uses with srun.

Unlike in `clusters/slurm/sbatch.py`, an invalid line is a finding, not an error. None means
unknown. A rule that needs an unknown number reports nothing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from echelon.clusters.slurm.options import (
    SBATCH,
    SRUN,
    directive_lines,
    move_value,
    parse_options,
    parse_sbatch,
    split_directive,
    split_gpus,
)
from echelon.core.frozen import frozen
from echelon.errors import UsageError
from echelon.lint.bash import Word
from echelon.lint.patterns import pattern


@frozen
class Directive:
    """One option of an #SBATCH line."""

    option: str
    """The long name."""
    value: str
    line: int


@frozen
class Directives:
    items: tuple[Directive, ...] = ()
    """In source order."""
    broken: tuple[tuple[int, str], ...] = ()
    """Line numbers and error messages of malformed directives."""
    several: bool = False
    """A heterogeneous job, with a separate request for each component."""

    def last(self, option: str) -> Directive | None:
        """Return the last directive for an option, which is the one that Slurm uses."""
        found = [item for item in self.items if item.option == option]
        return found[-1] if found else None


def read_directives(script: str) -> Directives:
    """Return the options that Slurm reads: those before the first command."""
    items, broken, several = [], [], False
    lines: list[tuple[int, list[str]]] = []
    for number, line in directive_lines(script):
        first = line.split()[:1]
        several = several or first in (["hetjob"], ["packjob"])
        if first in ([], ["hetjob"], ["packjob"]):
            continue
        try:
            words = split_directive(line, number)
        except UsageError as error:
            broken.append((number, error.message))
            continue
        if lines:
            move_value(lines[-1][1], words)
        lines.append((number, words))
    for number, words in lines:
        if (word := _with_one_dash(words)) is not None:
            broken.append((number, f"{word} has one dash, so it is read as {word[:2]} {word[2:]}"))
            continue
        try:
            parse_sbatch(words)
        except UsageError as error:
            broken.append((number, error.message))
            continue
        given, _ = parse_options(words, SBATCH)
        items += [Directive(option=one.name, value=one.value, line=number) for one in given]
    return Directives(items=tuple(items), broken=tuple(sorted(broken)), several=several)


def _with_one_dash(words: Sequence[str]) -> str | None:
    """Return the first word that is a long option except for its second dash."""
    names = ((word, word[1:].partition("=")[0]) for word in words if word.startswith("-"))
    return next((word for word, name in names if len(name) > 1 and name in SBATCH.known), None)


def read_srun(words: Sequence[Word]) -> tuple[dict[str, Word], tuple[Word, ...]]:
    """Return the options of srun and the command that follows them."""
    given, end = parse_options([word.text for word in words], SRUN)
    options = {
        option.name: replace(words[option.at], text=option.value.removeprefix("="), text_line=0)
        for option in given
    }
    return options, tuple(words[end:])


# --- values ---------------------------------------------------------------------------------

_TIME = pattern(r"\d+(?:-(?:\d+(?::\d+){0,2})?|(?::\d+){0,2})|-\d+", re.ASCII)


def is_slurm_time(text: str) -> bool:
    """Tell whether Slurm accepts a time limit.

    It documents 90, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS, and also accepts D- and -1.
    """
    return text.upper() in ("UNLIMITED", "INFINITE") or bool(_TIME.fullmatch(text))


def count_gpus(text: str) -> int | None:
    """Return the number of GPUs in `4`, `a100:4` or `a100`; None if it is not one number."""
    if not text or "," in text:
        return None
    kind, amount = split_gpus(text)
    plain = len(amount) < 10 and re.fullmatch(r"[\w.:-]*", kind, re.ASCII)
    return int(amount) if plain else None


def count_gres_gpus(text: str) -> int | None:
    """Return the number of GPUs in --gres; None for other resources or several GPU types."""
    gpus = list_gres_gpus(text)
    return count_gpus(gpus[0].partition(":")[2] or "1") if len(gpus) == 1 else None


def list_gres_gpus(text: str) -> list[str]:
    """Return the entries of --gres that request GPUs."""
    return [entry for entry in text.split(",") if re.match(r"(gres/)?gpu(:|$|\()", entry)]


# --- amounts --------------------------------------------------------------------------------

_GPU_OPTIONS = (
    "gres",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gpus-per-socket",
    "tres-per-task",
)


@frozen
class Amounts:
    """The resources of a job or a step."""

    nodes: int | None = None
    """None for a range such as 2-4."""
    fewest_nodes: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    """Only if requested, because the default depends on the cluster."""
    gpus_per_node: int | None = None
    """0 if none are requested."""
    gpus_per_task: int | None = None
    """Only if requested with --gpus-per-task, so that each task sees only its own GPUs."""

    @property
    def several_nodes(self) -> bool:
        return (self.fewest_nodes or 0) > 1

    @property
    def tasks(self) -> int | None:
        if self.nodes is None or self.tasks_per_node is None:
            return None
        return self.nodes * self.tasks_per_node

    @property
    def several_tasks(self) -> bool:
        return self.several_nodes or (self.tasks_per_node or 0) > 1


def read_request(directives: Directives) -> Amounts:
    """Return the resources that a job requests."""
    if directives.several or not directives.items:
        return Amounts()
    number = _Numbers(directives)
    gpus_per_task = count_gpus(number.text("gpus-per-task"))
    if number.text("gpu-bind").startswith("none"):
        gpus_per_task = None
    total_gpus = count_gpus(number.text("gpus"))
    each = number.gpus_each()
    fewest, most = number.nodes()
    if fewest is None and total_gpus and each and total_gpus % each == 0:
        fewest = most = total_gpus // each
    ntasks, per_node = number.of("ntasks"), number.of("ntasks-per-node")
    if fewest is None:
        fewest = most = _nodes_of_tasks(number, ntasks, per_node)
    nodes = fewest if fewest == most else None
    if per_node is None and not number.has("ntasks-per-node"):
        per_node = _tasks_of_nodes(number, ntasks, nodes, each)
    elif ntasks is not None and nodes and per_node and ntasks < nodes * per_node:
        per_node = ntasks // nodes if ntasks % nodes == 0 else None  # then it is a maximum
    if each is None and gpus_per_task and per_node:
        each = gpus_per_task * per_node
    if each is None and total_gpus and nodes == 1:
        each = total_gpus
    if each is None and not any(map(number.has, _GPU_OPTIONS)):
        each = 0
    return Amounts(
        nodes=nodes,
        fewest_nodes=fewest,
        tasks_per_node=per_node,
        cpus_per_task=number.of("cpus-per-task"),
        gpus_per_node=each,
        gpus_per_task=gpus_per_task,
    )


class _Numbers:
    """Values of options as numbers."""

    def __init__(self, directives: Directives) -> None:
        self._directives = directives

    def has(self, option: str) -> bool:
        return self._directives.last(option) is not None

    def text(self, option: str) -> str:
        found = self._directives.last(option)
        return found.value if found else ""

    def of(self, option: str) -> int | None:
        return _number(self.text(option))

    def nodes(self) -> tuple[int | None, int | None]:
        low, _, high = self.text("nodes").partition("-")
        return _number(low), _number(high or low)

    def gpus_each(self) -> int | None:
        """Return the number of GPUs per node."""
        if self.has("gpus-per-node"):
            return count_gpus(self.text("gpus-per-node"))
        return count_gres_gpus(self.text("gres")) if self.has("gres") else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _nodes_of_tasks(number: _Numbers, ntasks: int | None, per_node: int | None) -> int | None:
    """Return the number of nodes without --nodes; None if Slurm is free to choose it."""
    if number.has("nodes"):
        return None
    if ntasks and per_node and ntasks % per_node == 0:
        return ntasks // per_node
    if ntasks == 1 or not (number.has("ntasks") or number.has("gpus")):
        return 1
    return None


def _tasks_of_nodes(
    number: _Numbers, ntasks: int | None, nodes: int | None, gpus: int | None
) -> int | None:
    if number.has("ntasks-per-gpu") and not number.has("ntasks"):
        return (number.of("ntasks-per-gpu") or 0) * (gpus or 0) or None
    if any(map(number.has, ("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"))):
        return None
    if number.has("ntasks"):
        return ntasks // nodes if ntasks and nodes and ntasks % nodes == 0 else None
    if number.has("gpus-per-task") and number.has("gpus"):
        return None
    return 1


def read_step(job: Amounts, options: Mapping[str, Word]) -> Amounts:
    """Return the resources that a step uses."""
    given = {name: word.number for name, word in options.items()}
    nodes = given["nodes"] if "nodes" in options else job.nodes
    fewest = nodes if "nodes" in options else job.fewest_nodes
    per_node = job.tasks_per_node
    if "ntasks-per-node" in options:
        per_node = given["ntasks-per-node"]
    elif "ntasks" in options:
        tasks = given["ntasks"]
        if tasks == 1:
            nodes = fewest = per_node = 1
        else:
            per_node = tasks // nodes if tasks and nodes and tasks % nodes == 0 else None
    elif "ntasks-per-gpu" in options:
        gpus = _gpus_of_step(job, options, nodes) or 0
        per_node = (given["ntasks-per-gpu"] or 0) * gpus or None
    elif "nodes" in options and nodes != job.nodes:
        per_node = None  # srun keeps the number of tasks of the job
    gpus_per_task = job.gpus_per_task
    if "gpus-per-task" in options:
        gpus_per_task = count_gpus(options["gpus-per-task"].text)
    if "gpu-bind" in options and options["gpu-bind"].text.startswith("none"):
        gpus_per_task = None
    return Amounts(
        nodes=nodes,
        fewest_nodes=fewest,
        tasks_per_node=per_node,
        cpus_per_task=given["cpus-per-task"] if "cpus-per-task" in options else job.cpus_per_task,
        gpus_per_node=_gpus_of_step(job, options, nodes),
        gpus_per_task=gpus_per_task,
    )


def _gpus_of_step(job: Amounts, options: Mapping[str, Word], nodes: int | None) -> int | None:
    asked = [name for name in ("gpus-per-node", "gres", "gpus") if name in options]
    if not asked:
        return job.gpus_per_node
    if not all(options[name].known for name in asked):
        return None
    if asked[0] == "gres":
        return count_gres_gpus(options["gres"].text)
    if asked[0] == "gpus" and nodes != 1:
        return None
    return count_gpus(options[asked[0]].text)


def known_variables(directives: Directives, job: Amounts) -> dict[str, str]:
    """Return the Slurm variables of the job script whose values follow from the request."""
    values = {"SLURM_NNODES": job.nodes, "SLURM_JOB_NUM_NODES": job.nodes}
    if any(map(directives.last, COUNTING_TASKS)):
        values |= dict.fromkeys(NUMBERS_OF_TASKS, job.tasks)
    found = {name: str(value) for name, value in values.items() if value}
    for variable, option in OF_OPTIONS.items():
        if (given := directives.last(option)) is not None and not directives.several:
            found[variable] = given.value
    if directives.items:  # the job script runs as the first task
        found |= dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"), "0")
    return found


OF_OPTIONS = {
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPUS": "gpus",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
}
"""Variables that Slurm sets only if the job uses their option."""
NUMBERS_OF_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
COUNTING_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket")
"""Options without which Slurm does not set the numbers of tasks in the job script."""
