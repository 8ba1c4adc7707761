"""The request: what to run, on how much, and with which environment.

`JobSpec` is the frozen result of merging layers: defaults ← cluster profile ← project file ← flags
← `--set`. Every key has one reader, so a value means the same wherever it was written, and merging
collects every problem before it gives up. Pure: files are read by the command line.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from echelon import readers
from echelon.core.units import format_memory, parse_duration
from echelon.errors import EchelonError, UsageError
from echelon.readers import NodeCount, nearest

STYLES = ("echelon", "srun", "spawn", "file", "static", "torchrun", "ray")
"""How ranks can be started: docs/styles.md."""

GPU_OPTIONS = ("gres", "gpus-per-node", "gpus-per-task", "gpus")
"""How sites want GPUs to be asked for."""

_ONE_NODE = NodeCount()
_SCRIPT_VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PEER_ADDR"),
        *("PORT_TAKEN", "DIST_FILE", "code", "host", "interface", "launcher", "log", "own"),
        *("peer", "python", "scratch", "taken", "task", "towards", "try"),
        # of style `ray`
        *("head", "node", "one", "others", "ray", "role", "leash", "late", "linger", "memory"),
        *(
            "end_s",
            "gpus",
            "cpus",
            "tmp",
            "workers",
            "AUTOSCALER_METRIC_PORT",
            "DASHBOARD_METRIC_PORT",
        ),
        *("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_HOME"),
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
_EXCLUSIVE = (("cpus_per_task", "cpus_per_gpu"), ("mail", "mail_user"), ("mail", "mail_type"))


# --- the request ----------------------------------------------------------------------------


def _key(read: Callable[[object], Any], default: Any, help_text: str, **more: Any) -> Any:
    metadata = {"read": read, "help": help_text, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What is asked for. Empty or 0 means: not asked, Slurm's or the site's default."""

    script: str = _key(readers.text, "", "the training script")
    args: tuple[str, ...] = _key(readers.words, (), "its arguments")
    module: bool = _key(readers.switch, False, "the script is a module's name, as with python -m")
    style: str = _key(readers.one_of(*STYLES), "echelon", "how ranks are started")
    name: str = _key(readers.text, "", "the job's name; the script's when empty")

    partition: str = _key(readers.text, "", "partition, or several with commas")
    account: str = _key(readers.text, "", "who pays")
    qos: str = _key(readers.text, "", "quality of service")
    constraint: str = _key(readers.text, "", "features that nodes must have")
    nodelist: str = _key(readers.hosts, "", "nodes to use")
    exclude: str = _key(readers.hosts, "", "nodes not to use")
    dependency: str = _key(readers.text, "", "jobs to wait for, as sbatch takes them")

    nodes: NodeCount = _key(readers.nodes, _ONE_NODE, "nodes: 2, or 2:4")  # noqa: RUF009  frozen
    gpus: int = _key(readers.count, 0, "GPUs per node")
    gpu_type: str = _key(readers.text, "", "their type")
    gpu_option: str = _key(
        readers.one_of(*GPU_OPTIONS), "gres", "how this site wants GPUs asked for"
    )
    procs: int = _key(readers.count, 0, "ranks per node; one per GPU when 0")
    cpus_per_task: int = _key(readers.count, 0, "CPUs per rank")
    cpus_per_gpu: int = _key(readers.count, 0, "CPUs per GPU")
    mem_mib: int = _key(readers.memory, 0, "memory per node", key="mem")
    mem_per_cpu_mib: int = _key(readers.memory, 0, "memory per CPU", key="mem_per_cpu")
    mem_per_gpu_mib: int = _key(readers.memory, 0, "memory per GPU", key="mem_per_gpu")
    time: str = _key(readers.duration, "", "time limit")
    wait_all_nodes: bool = _key(readers.switch, False, "start when all nodes are ready")
    signal_lead_s: int = _key(
        readers.seconds, 0, "warn this long before the limit", key="signal_lead"
    )

    restarts: int = _key(readers.count, 3, "how often ranks are started anew after a failure")
    hang_timeout_s: int = _key(
        readers.seconds, 300, "how long without progress is a hang; 0: never", key="hang_timeout"
    )
    on_hang: str = _key(
        readers.one_of("report", "restart", "stop"), "report", "what then: report, restart or stop"
    )
    grace_s: int = _key(
        readers.seconds, 30, "what a script gets to save when it is told to stop", key="grace"
    )
    hand_over: str = _key(
        readers.one_of("auto", "always", "requeue", "never"),
        "auto",
        "whether a next job takes over: auto, always, requeue or never",
    )
    telemetry: bool = _key(readers.switch, True, "measure nodes and ranks once a second")
    node_check: str = _key(readers.text, "", "a command that a node must pass before it is used")
    preflight: bool = _key(
        readers.switch, False, "examine all nodes first, and leave out those that fail"
    )
    preload: tuple[str, ...] = _key(
        readers.words, ("torch",), "modules imported once for all ranks"
    )

    chdir: str = _key(readers.text, "", "where the job runs; here when empty")
    output: str = _key(readers.text, "", "where Slurm puts the output, with %j and the like")
    notify: str = _key(readers.text, "", "a command to run when the run is over")
    mail: str = _key(readers.address, "", "who gets mail when the run is over")
    mail_user: str = _key(readers.text, "", "who gets mail about each job")
    mail_type: tuple[str, ...] = _key(readers.mail_types, (), "about what")

    python: str = _key(readers.text, "", "the Python of the ranks")
    venv: str = _key(readers.text, "", "virtual environment to activate")
    conda: str = _key(readers.text, "", "conda environment to activate")
    modules: tuple[str, ...] = _key(readers.words, (), "environment modules to load")
    prologue: tuple[str, ...] = _key(readers.lines, (), "lines of bash to run before")
    env: Mapping[str, str] = _key(readers.table, {}, "variables of every rank")
    slurm_extra: Mapping[str, str] = _key(
        readers.table, {}, "any other sbatch option", key="slurm.extra"
    )

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
            found.append(f"{' and '.join(memory)} exclude each other: keep one of them")
        found += [
            f"{one} and {other} exclude each other: keep one of them"
            for one, other in _EXCLUSIVE
            if getattr(self, one) and getattr(self, other)
        ]
        found += [
            f"{key} needs gpus: add --gpus, how many of them a node shall have"
            for key, value in (
                ("gpu_type", self.gpu_type),
                ("cpus_per_gpu", self.cpus_per_gpu),
                ("mem_per_gpu", self.mem_per_gpu_mib),
            )
            if value and not self.gpus
        ]
        if self.gpus and self.procs_per_node > self.gpus:
            found.append(
                f"procs is {self.procs}, but a node has only {self.gpus} GPUs: leave procs out for "
                "one rank per GPU, or gpus for ranks without"
            )
        if self.gpu_option == "gpus-per-task" and self.gpus % self.tasks_per_node:
            found.append(
                f"{self.gpus} gpus cannot be shared evenly by {self.tasks_per_node} tasks, as "
                f"gpu_option '{self.gpu_option}' wants: use --gpu-option gres"
            )
        if self.nodes.low != self.nodes.high and self.style not in ("echelon", "torchrun"):
            found.append(
                f"style '{self.style}' needs a fixed number of nodes, not {self.nodes}: write "
                f"--nodes {self.nodes.high}, or use --style echelon"
            )
        if self.nodes.low != self.nodes.high and self.gpu_option in ("gpus", "gpus-per-task"):
            found.append(
                f"gpu_option '{self.gpu_option}' needs a fixed number of nodes, not {self.nodes}: "
                f"write --nodes {self.nodes.high}, or use --gpu-option gres"
            )
        limit_s = parse_duration(self.time) if self.time else None
        if self.style == "echelon" and limit_s is not None and limit_s <= self._warned_s:
            found.append(
                f"a time of {self.time} leaves none to work: its end is told {self._warned_s} s "
                "before (signal_lead, grace): ask for more time"
            )
        found += self._style_problems()
        found += [
            f"the variable {name} is the job's own: take it out of env"
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
            f"'{name}' cannot be the name of a variable in env: use letters, digits and _"
            for name in self.env
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        ]
        found += [
            f"'{name}' is not an sbatch option: write it as in --slurm reservation=NAME"
            for name in self.slurm_extra
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name)
        ]
        return found

    def _style_problems(self) -> list[str]:
        """Return what the style cannot do."""
        found = []
        if self.signal_lead_s and self.style in ("static", "torchrun", "ray"):
            found.append(
                f"style '{self.style}' does not hand a signal on to its ranks: leave signal_lead "
                "out, or use --style echelon or srun"
            )
        if self.module and self.style in ("static", "torchrun"):
            found.append(
                f"style '{self.style}' takes a script, not a module: use --style echelon or srun"
            )
        if self.module and "/" in self.script:
            found.append(
                f"'{self.script}' is no module of Python, which --module is for; an environment "
                f"module is loaded with --load {self.script}"
            )
        if self.preflight and self.style != "echelon":
            found.append(
                f"style '{self.style}' has no preflight: use --style echelon, or look before: "
                "echelon doctor --nodes N"
            )
        # sbatch takes the beginning of an option for the whole.
        if self.style == "echelon" and any("array".startswith(name) for name in self.slurm_extra):
            found.append(
                "an array (--slurm array, or --array in a script) is several jobs, and a run of "
                "style 'echelon' is one: the other tasks would do nothing; submit in a loop "
                "instead (for i in 0 1 2; do echelon submit …; done), or use --style srun"
            )
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


def _in_force(layers: Sequence[Layer]) -> Iterator[tuple[Layer, str, object]]:
    """Yield what each layer says that no later one replaces: what is replaced may be wrong."""
    tables = {name for name, key in KEYS.items() if isinstance(getattr(JobSpec(), key.field), dict)}
    for number, layer in enumerate(layers):
        later = {name for after in layers[number + 1 :] for name in after.values} - tables
        for name, raw in layer.values.items():
            if name not in later or name not in KEYS:
                yield layer, name, raw


def merge(layers: Sequence[Layer]) -> Merged:
    """Return the request that these layers make, the later ones first.

    Raises:
        UsageError: with every problem of every layer.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, "default")
    problems: list[str] = []
    hints: list[str] = []
    for layer, name, raw in _in_force(layers):
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
    conflicts = spec.problems()
    if conflicts:
        hints.append(_tell_origins(conflicts, origins))
    if problems or conflicts:
        hint = "; ".join(dict.fromkeys(filter(None, hints)))
        raise UsageError("; ".join([*problems, *conflicts]), hint=hint)
    return Merged(spec=spec, origins=origins)


def _tell_origins(problems: Sequence[str], origins: Mapping[str, str]) -> str:
    """Return where the keys that problems speak of were set: not all was typed just now."""
    words = set(re.findall(r"[a-z_]+", " ".join(problems)))
    told = [
        f"{key} is from {source}"
        for key, source in origins.items()
        if source != "default" and words & {key, key.partition(".")[0]}
    ]
    return ", ".join(told)
