"""The request: what to run, on how much, and with which environment.

`JobSpec` is the frozen result of merging layers: defaults ← cluster profile ← project file ← flags
← `--set`. Every key has one reader, so a value means the same wherever it was written, and merging
collects every problem before it gives up. Pure: files are read by the command line.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from echelon.core.nodes import compress, expand
from echelon.core.units import format_duration, format_memory, parse_duration, parse_memory
from echelon.errors import EchelonError, UsageError

STYLES = ("echelon", "srun", "spawn", "file", "static", "torchrun")
"""How ranks can be started: docs/styles.md."""

GPU_OPTIONS = ("gres", "gpus-per-node", "gpus-per-task", "gpus")
"""How sites want GPUs to be asked for."""

MAIL_TYPES = (
    *("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT"),
    *("TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS"),
)


@dataclass(frozen=True, slots=True)
class NodeCount:
    """How many nodes: at least and at most."""

    low: int = 1
    high: int = 1

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


_ONE_NODE = NodeCount()
_SCRIPT_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PEER_ADDR"),
        *("PORT_TAKEN", "DIST_FILE", "code", "host", "interface", "launcher", "log", "own"),
        *("peer", "python", "scratch", "taken", "task", "towards", "try"),
    }
)
"""What a job's script sets for itself."""
_OWN_OPTIONS = frozenset(
    {
        *("job-name", "partition", "account", "qos", "nodes", "gpus", "cpus-per-task"),
        *("cpus-per-gpu", "mem-per-cpu", "mem-per-gpu", "time", "constraint", "nodelist"),
        *("exclude", "dependency", "chdir", "output", "mail-user", "mail-type"),
    }
)


# --- readers: any way of writing a value → the value ------------------------------------------


def _text(raw: object) -> str:
    if not isinstance(raw, str | int | float) or isinstance(raw, bool):
        raise UsageError(f"{raw!r} is not a text", hint='write it in quotes, for example "gpu"')
    return str(raw)


def _count(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    if isinstance(raw, str) and raw.isdecimal() and raw.isascii():
        return int(raw)
    raise UsageError(f"{raw!r} is not a whole number", hint="write 0 or more, for example 4")


def _nodes(raw: object) -> NodeCount:
    low, colon, high = str(raw).partition(":")
    try:
        count = NodeCount(_count(low), _count(high if colon else low))
    except UsageError:
        count = NodeCount(0, 0)
    if not 1 <= count.low <= count.high:
        raise UsageError(f"{raw!r} is not a number of nodes", hint="write 2, or 2:4 for 2 to 4")
    return count


def _memory(raw: object) -> int:
    if not (mib := parse_memory(str(raw))):
        raise UsageError(
            "0 means all of a node's memory to Slurm", hint="say so to Slurm itself: --slurm mem=0"
        )
    return mib


def _duration(raw: object) -> str:
    return format_duration(parse_duration(str(raw))) if raw != "" else ""


def _seconds(raw: object) -> int:
    if isinstance(raw, int) or (isinstance(raw, str) and raw.isdecimal()):
        return _count(raw)
    hint = "write 90 (seconds), 2m or 1h30m"  # where Slurm's own durations count in minutes
    try:
        seconds = parse_duration(str(raw))
    except UsageError as error:
        raise UsageError(error.message, hint=hint) from error
    if seconds is None:
        raise UsageError("it cannot be unlimited", hint=hint)
    return seconds


def _switch(raw: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(raw, bool):
        return raw
    if str(raw).lower() in words:
        return words[str(raw).lower()]
    raise UsageError(f"{raw!r} is neither true nor false", hint="write true or false")


def _hosts(raw: object) -> str:
    return compress(expand(_text(raw)))


def _words(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(word for word in raw.split(",") if word)
    if isinstance(raw, Sequence):
        return tuple(_text(word) for word in raw)
    raise UsageError(f"{raw!r} is not a list", hint='write ["a", "b"], or a,b on the command line')


def _lines(raw: object) -> tuple[str, ...]:
    return (raw,) if isinstance(raw, str) else _words(raw)


def _one_of(*choices: str) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if raw in choices:
            return str(raw)
        raise UsageError(
            f"{raw!r} is not one of {', '.join(choices)}", hint=nearest(str(raw), choices)
        )

    return read


def _mail_types(raw: object) -> tuple[str, ...]:
    known = _one_of(*MAIL_TYPES)
    return tuple(known(word.upper()) for word in _words(raw))


def _table(raw: object) -> dict[str, str]:
    if not isinstance(raw, Mapping):
        raise UsageError(f"{raw!r} is not a table", hint='write it as [env] and NAME = "value"')
    return {str(key): _text(value) for key, value in raw.items()}


def nearest(wrong: str, right: Sequence[str]) -> str:
    """Return a hint: the name that was probably meant, or all there are."""
    close = difflib.get_close_matches(wrong, right, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(right)}"


# --- the request ----------------------------------------------------------------------------


def _key(read: Callable[[object], Any], default: Any, help_text: str, **more: Any) -> Any:
    metadata = {"read": read, "help": help_text, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What is asked for. Empty or 0 means: not asked, Slurm's or the site's default."""

    script: str = _key(_text, "", "the training script")
    args: tuple[str, ...] = _key(_words, (), "its arguments")
    module: bool = _key(_switch, False, "the script is a module's name, as with python -m")
    style: str = _key(_one_of(*STYLES), "echelon", "how ranks are started")
    name: str = _key(_text, "", "the job's name; the script's when empty")

    partition: str = _key(_text, "", "partition, or several with commas")
    account: str = _key(_text, "", "who pays")
    qos: str = _key(_text, "", "quality of service")
    constraint: str = _key(_text, "", "features that nodes must have")
    nodelist: str = _key(_hosts, "", "nodes to use")
    exclude: str = _key(_hosts, "", "nodes not to use")
    dependency: str = _key(_text, "", "jobs to wait for, as sbatch takes them")

    nodes: NodeCount = _key(_nodes, _ONE_NODE, "nodes: 2, or 2:4")  # noqa: RUF009  frozen
    gpus: int = _key(_count, 0, "GPUs per node")
    gpu_type: str = _key(_text, "", "their type")
    gpu_option: str = _key(_one_of(*GPU_OPTIONS), "gres", "how this site wants GPUs asked for")
    procs: int = _key(_count, 0, "ranks per node; one per GPU when 0")
    cpus_per_task: int = _key(_count, 0, "CPUs per rank")
    cpus_per_gpu: int = _key(_count, 0, "CPUs per GPU")
    mem_mib: int = _key(_memory, 0, "memory per node", key="mem")
    mem_per_cpu_mib: int = _key(_memory, 0, "memory per CPU", key="mem_per_cpu")
    mem_per_gpu_mib: int = _key(_memory, 0, "memory per GPU", key="mem_per_gpu")
    time: str = _key(_duration, "", "time limit")
    wait_all_nodes: bool = _key(_switch, False, "start when all nodes are ready")
    signal_lead_s: int = _key(_seconds, 0, "warn this long before the limit", key="signal_lead")

    restarts: int = _key(_count, 3, "how often ranks are started anew after a failure")
    hang_timeout_s: int = _key(
        _seconds, 300, "how long without progress is a hang; 0: never", key="hang_timeout"
    )
    on_hang: str = _key(
        _one_of("report", "restart", "stop"), "report", "what then: report, restart or stop"
    )
    grace_s: int = _key(
        _seconds, 30, "what a script gets to save when it is told to stop", key="grace"
    )
    hand_over: str = _key(
        _one_of("auto", "always", "requeue", "never"),
        "auto",
        "whether a next job takes over: auto, always, requeue or never",
    )
    node_check: str = _key(_text, "", "a command that a node must pass before it is used")
    preload: tuple[str, ...] = _key(_words, ("torch",), "modules imported once for all ranks")

    chdir: str = _key(_text, "", "where the job runs; here when empty")
    output: str = _key(_text, "", "where Slurm puts the output, with %j and the like")
    mail_user: str = _key(_text, "", "who gets mail")
    mail_type: tuple[str, ...] = _key(_mail_types, (), "about what")

    python: str = _key(_text, "", "the Python of the ranks")
    venv: str = _key(_text, "", "virtual environment to activate")
    conda: str = _key(_text, "", "conda environment to activate")
    modules: tuple[str, ...] = _key(_words, (), "modules to load")
    prologue: tuple[str, ...] = _key(_lines, (), "lines of bash to run before")
    env: Mapping[str, str] = _key(_table, {}, "variables of every rank")
    slurm_extra: Mapping[str, str] = _key(_table, {}, "any other sbatch option", key="slurm.extra")

    # Derived, never typed twice

    @property
    def procs_per_node(self) -> int:
        """Ranks on each node."""
        return self.procs or self.gpus or 1

    @property
    def tasks_per_node(self) -> int:
        """Slurm's tasks: where a launcher on each node starts the ranks, one.

        So it is with our own where the number of nodes is open: with tasks per node Slurm would
        take no more nodes than it must.
        """
        if self.nodes.low != self.nodes.high:
            return 1
        return self.procs_per_node if self.style in ("echelon", "srun", "file") else 1

    @property
    def ranks_per_task(self) -> int:
        return self.procs_per_node // self.tasks_per_node

    @property
    def max_world_size(self) -> int:
        return self.nodes.high * self.procs_per_node

    @property
    def cpus_per_rank(self) -> int:
        """CPUs that a rank may use; 0 when the request does not say."""
        if self.cpus_per_task:
            return self.cpus_per_task
        return (
            max(1, self.cpus_per_gpu * self.gpus // self.procs_per_node) if self.cpus_per_gpu else 0
        )

    @property
    def omp_threads(self) -> int:
        """OMP_NUM_THREADS: half of a rank's CPUs compute, the others load data."""
        return max(1, self.cpus_per_rank // 2)

    @property
    def loader_workers(self) -> int:
        """DataLoader workers suggested per rank: what the rank itself leaves over."""
        return max(0, self.cpus_per_rank - self.omp_threads)

    @property
    def job_name(self) -> str:
        stem = self.script.rpartition("/")[2].rpartition(".")[0] or self.script.rpartition("/")[2]
        return self.name or " ".join(stem.split()) or "echelon"

    @property
    def _warned_s(self) -> int:
        """How long before the end of a job its ranks are told, whatever they are."""
        saves = self.hand_over in ("always", "requeue")
        return max(self.signal_lead_s, self.grace_s + 10 if saves else 0)

    def problems(self) -> list[str]:
        """Return everything in it that cannot be."""
        found = []
        memory = [k for k in ("mem", "mem_per_cpu", "mem_per_gpu") if getattr(self, f"{k}_mib")]
        if len(memory) > 1:
            found.append(f"{' and '.join(memory)} exclude each other")
        if self.cpus_per_task and self.cpus_per_gpu:
            found.append("cpus_per_task and cpus_per_gpu exclude each other")
        found += [
            f"{key} needs gpus"
            for key, value in (
                ("gpu_type", self.gpu_type),
                ("cpus_per_gpu", self.cpus_per_gpu),
                ("mem_per_gpu", self.mem_per_gpu_mib),
            )
            if value and not self.gpus
        ]
        if self.gpus and self.procs_per_node > self.gpus:
            found.append(f"procs is {self.procs}, but a node has only {self.gpus} GPUs")
        if self.gpu_option == "gpus-per-task" and self.gpus % self.tasks_per_node:
            found.append(f"{self.gpus} GPUs cannot be shared evenly by {self.tasks_per_node} tasks")
        if self.nodes.low != self.nodes.high and self.style not in ("echelon", "torchrun"):
            found.append(f"style '{self.style}' needs a fixed number of nodes, not {self.nodes}")
        if self.nodes.low != self.nodes.high and self.gpu_option in ("gpus", "gpus-per-task"):
            found.append(f"gpu_option '{self.gpu_option}' needs a fixed number of nodes")
        if self.signal_lead_s and self.style in ("static", "torchrun"):
            found.append(f"style '{self.style}' does not hand a signal on to its ranks")
        limit_s = parse_duration(self.time) if self.time else None
        if self.style == "echelon" and limit_s is not None and limit_s <= self._warned_s:
            found.append(
                f"a time of {self.time} leaves none to work: its end is told {self._warned_s} s "
                "before (signal_lead, grace)"
            )
        if self.module and self.style in ("static", "torchrun"):
            found.append(f"style '{self.style}' takes a script, not a module")
        found += [
            f"the variable {name} is the job's own"
            for name in self.env
            if name in _SCRIPT_VARIABLES
        ]
        found += [
            f"--slurm {name} is a key of the request: use --{name}"
            for name in self.slurm_extra
            if name in _OWN_OPTIONS
        ]
        found += [
            f"--slurm {name} is for hand_over to say: use --hand-over requeue, or never"
            for name in ("requeue", "no-requeue")
            if name in self.slurm_extra
        ]
        found += [
            f"'{name}' cannot be the name of a variable"
            for name in self.env
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        ]
        found += [
            f"'{name}' is not an sbatch option"
            for name in self.slurm_extra
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name)
        ]
        return found


# --- keys -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A name that users write, and what becomes of its value."""

    name: str
    field: str
    read: Callable[[object], Any]
    help: str


KEYS = {
    key.name: key
    for key in (
        Key(
            name=f.metadata.get("key", f.name),
            field=f.name,
            read=f.metadata["read"],
            help=f.metadata["help"],
        )
        for f in fields(JobSpec)
    )
}


def show_value(key: str, spec: JobSpec) -> str:
    """Return a key's value as a user would write it."""
    value = getattr(spec, KEYS[key].field)
    if key.startswith("mem") and isinstance(value, int):
        return format_memory(value) if value else ""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={entry}" for name, entry in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value or value != getattr(JobSpec(), KEYS[key].field) else ""


# --- merging --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values from one place, as they were written."""

    source: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    spec: JobSpec
    origins: Mapping[str, str]
    """Key → the source that decided it; `default` otherwise."""


def merge(layers: Sequence[Layer]) -> Merged:
    """Return the request that these layers make, the later ones first.

    Raises:
        UsageError: with every problem of every layer.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")
    problems: list[str] = []
    hints: list[str] = []
    for layer in layers:
        for name, raw in layer.values.items():
            if name not in KEYS:
                problems.append(f"{layer.source}: unknown key '{name}'")
                hints.append(nearest(name, tuple(KEYS)))
                continue
            key = KEYS[name]
            try:
                value = key.read(raw)
            except EchelonError as error:
                problems.append(f"{layer.source}: {name}: {error.message}")
                hints.append(error.hint)
                continue
            if isinstance(value, dict):  # tables add up, name by name
                value = {**values.get(key.field, {}), **value}
            values[key.field] = value
            origins[name] = layer.source
    spec = replace(JobSpec(), **values)
    problems += spec.problems()
    if problems:
        raise UsageError("; ".join(problems), hint="; ".join(dict.fromkeys(hints)))
    return Merged(spec=spec, origins=origins)
