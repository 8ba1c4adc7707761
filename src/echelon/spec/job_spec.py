"""The request: what to run, on how much, and with which environment.

Each key is one field, with its reader and its help: options, files and documentation are derived
from it. merging.py merges layers into one request, conflicts.py finds what conflicts in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from typing import Any

from echelon.core.frozen import frozen
from echelon.core.units import format_memory
from echelon.spec import readers
from echelon.spec.readers import LimitSignal, NodeCount

STYLES = ("echelon", "srun", "spawn", "file", "static", "torchrun", "ray")
"""How ranks can be started: docs/styles.md."""

GPU_OPTIONS = ("gres", "gpus-per-node", "gpus-per-task", "gpus")
"""How to request GPUs; sites differ."""

RUNTIMES = ("apptainer", "singularity", "podman", "pyxis")
"""How ranks get into a container image: docs/guides/containers.md."""

RESTARTS = 3
"""How many restarts a run may have if nobody says so and its script can resume."""

_ONE_NODE = NodeCount()

# --- the request ----------------------------------------------------------------------------


def _key(read: Callable[[object], Any], default: Any, help_text: str, **more: Any) -> Any:
    metadata = {"read": read, "help": help_text, **more}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@frozen
class JobSpec:
    """What the user requests. Empty or 0 means not requested: Slurm's or the site's default."""

    script: str = _key(readers.text, "", "the training script")
    args: tuple[str, ...] = _key(readers.words, (), "arguments of the script")
    module: bool = _key(readers.switch, False, "treat the script as a module name, like python -m")
    style: str = _key(
        readers.OneOf(STYLES), "echelon", "how to start the ranks, such as srun or torchrun"
    )
    name: str = _key(readers.text, "", "job name [default: the script's name]")

    partition: str = _key(readers.text, "", "partition, or several separated by commas")
    account: str = _key(readers.text, "", "account to charge")
    qos: str = _key(readers.text, "", "quality of service")
    constraint: str = _key(readers.text, "", "node features required")
    nodelist: str = _key(readers.hosts, "", "nodes to use")
    exclude: str = _key(readers.hosts, "", "nodes to avoid")
    dependency: str = _key(readers.text, "", "job dependencies, in sbatch's syntax")

    nodes: NodeCount = _key(readers.nodes, _ONE_NODE, "number of nodes, such as 2 or 2:4")
    gpus: int = _key(readers.count, 0, "GPUs per node")
    gpu_type: str = _key(readers.text, "", "GPU type")
    gpu_option: str = _key(
        readers.OneOf(GPU_OPTIONS), "gres", "how to request GPUs, such as gpus-per-node"
    )
    procs: int = _key(readers.positive, 0, "ranks per node [default: one per GPU]")
    cpus_per_task: int = _key(readers.positive, 0, "CPUs per rank")
    cpus_per_gpu: int = _key(readers.positive, 0, "CPUs per GPU")
    mem_mib: int = _key(readers.memory, 0, "memory per node", key="mem")
    mem_per_cpu_mib: int = _key(readers.memory, 0, "memory per CPU", key="mem_per_cpu")
    mem_per_gpu_mib: int = _key(readers.memory, 0, "memory per GPU", key="mem_per_gpu")
    time: str = _key(readers.duration, "", "time limit")
    wait_all_nodes: bool = _key(readers.switch, False, "start only when all nodes are ready")
    signal_lead_s: int = _key(
        readers.seconds, 0, "warn ranks this long before the time limit", key="signal_lead"
    )

    restarts: int | None = _key(
        readers.count,
        None,
        f"maximum number of restarts after failures [default: {RESTARTS}; 0 if the script does not "
        "use echelon]",
    )
    hang_timeout_s: int = _key(
        readers.seconds,
        300,
        "time without progress that counts as a hang; 0 turns detection off",
        key="hang_timeout",
    )
    on_hang: str = _key(
        readers.OneOf(("report", "restart", "stop")),
        "report",
        "what to do about a hang: report, restart or stop",
    )
    grace_s: int = _key(
        readers.seconds, 30, "time between the request to stop and SIGKILL", key="grace"
    )
    hand_over: str = _key(
        readers.OneOf(("auto", "always", "requeue", "never")),
        "auto",
        "whether another job continues the run: auto, always, requeue or never",
    )
    telemetry: bool = _key(readers.switch, True, "measure nodes and ranks once a second")
    node_check: str = _key(
        readers.text, "", "command that must succeed on a node before it is used"
    )
    forgive_after_s: int = _key(
        readers.seconds,
        7 * 24 * 3600,
        "how long to avoid a bad node; 0 turns this off",
        key="forgive_after",
    )
    preflight: bool = _key(
        readers.switch, False, "examine all nodes first, and avoid those that fail"
    )
    preload: tuple[str, ...] = _key(
        readers.words, ("torch",), "modules to import once for all ranks"
    )

    chdir: str = _key(readers.text, "", "working directory [default: the current one]")
    output: str = _key(readers.text, "", "Slurm's output file; patterns such as %j work")
    notify: str = _key(readers.text, "", "command to run once when the run is over")
    mail: str = _key(readers.address, "", "address to mail once when the run is over")
    mail_user: str = _key(readers.text, "", "address for Slurm's mail about each job")
    mail_type: tuple[str, ...] = _key(readers.mail_types, (), "events of a job to mail about")

    snapshot: bool | None = _key(
        readers.switch,
        None,
        "execute a copy of the code as it is now [default: in jobs, not on this machine]",
    )
    python: str = _key(readers.text, "", "Python interpreter of the ranks")
    venv: str = _key(readers.text, "", "virtual environment to activate")
    conda: str = _key(readers.text, "", "conda environment to activate")
    modules: tuple[str, ...] = _key(readers.words, (), "environment modules to load")
    prologue: tuple[str, ...] = _key(readers.lines, (), "bash lines to run before the script")
    env: Mapping[str, str] = _key(readers.table, {}, "environment variables for all ranks")
    image: str = _key(readers.text, "", "container image of the ranks, or its file")
    image_runtime: str = _key(
        readers.OneOf(RUNTIMES),
        "",
        "container runtime, such as apptainer [default: the first one installed]",
    )
    image_mounts: tuple[str, ...] = _key(
        readers.words, (), "folders to mount in the image, beside home, project and run"
    )
    image_env: Mapping[str, str] = _key(readers.table, {}, "environment variables in the image")
    image_workdir: str = _key(
        readers.text, "", "working directory in the image [default: the same as outside]"
    )
    image_python: str = _key(readers.text, "", "Python interpreter in the image [default: python3]")
    image_options: tuple[str, ...] = _key(readers.lines, (), "more options of the runtime")
    image_cache: str = _key(
        readers.text, "", "folder for imported images [default: ~/.cache/echelon/images]"
    )
    stage: bool = _key(
        readers.switch, False, "copy the environment or image to each node's own disk first"
    )
    stage_dir: str = _key(
        readers.text,
        "",
        "folder for these copies; %N is the node's name [default: /var/tmp/echelon-stage-UID]",
    )
    stage_limit_mib: int = _key(
        readers.memory, 50 << 10, "disk space for these copies", key="stage_limit"
    )
    slurm_extra: Mapping[str, str] = _key(
        readers.options, {}, "any other sbatch option", key="slurm.extra"
    )

    # Derived values

    def allowed_restarts(self, *, uses_library: bool) -> int | None:
        """Return how many restarts the run may have; None: none, for nobody asked for any.

        A script that does not resume would begin at step 0 and overwrite its checkpoints. Whoever
        wants hung ranks restarted, or to continue with fewer nodes or in another job, knows that it
        resumes.
        """
        elastic = self.nodes.low != self.nodes.high
        asked = elastic or self.on_hang == "restart" or self.hand_over in ("always", "requeue")
        return RESTARTS if self.restarts is None and (asked or uses_library) else self.restarts

    @property
    def procs_per_node(self) -> int:
        """Ranks on each node."""
        return self.procs or self.gpus or 1

    @property
    def tasks_per_node(self) -> int:
        """Slurm's tasks; one if a launcher on each node starts the ranks.

        One also if the number of nodes is variable: with a number of tasks per node, Slurm would
        allocate no more nodes than the minimum.
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
        """CPUs that a rank may use; 0 if the request does not say."""
        if self.cpus_per_task:
            return self.cpus_per_task
        return (
            max(1, self.cpus_per_gpu * self.gpus // self.procs_per_node) if self.cpus_per_gpu else 0
        )

    @property
    def limit_lead_s(self) -> int:
        """How long before the time limit ranks are told, at least; 0 if not requested."""
        return self.limit_signal.lead_s if self.limit_signal else 0

    @property
    def cpus_per_node(self) -> int:
        """CPUs to request on each node."""
        return self.procs_per_node * max(1, self.cpus_per_rank)

    @property
    def mem_per_node_mib(self) -> int:
        """Memory to request on each node, whichever key sets it; 0 if none does."""
        return (
            self.mem_mib
            or self.mem_per_cpu_mib * self.cpus_per_node
            or self.mem_per_gpu_mib * self.gpus
        )

    @property
    def omp_threads(self) -> int:
        """OMP_NUM_THREADS: half of a rank's CPUs compute, the others load data."""
        return max(1, self.cpus_per_rank // 2)

    @property
    def loader_workers(self) -> int:
        """DataLoader workers suggested per rank: the CPUs that its own threads leave free."""
        return max(0, self.cpus_per_rank - self.omp_threads)

    @property
    def limit_signal(self) -> LimitSignal | None:
        """The signal that ranks get before the time limit; None if not requested.

        sbatch's --signal and `signal_lead` both request it: the longer time counts.
        """
        asked = [
            readers.limit_signal(value)
            for name, value in self.slurm_extra.items()
            if readers.is_signal(name)
        ]
        if self.signal_lead_s:
            asked.append(LimitSignal(lead_s=self.signal_lead_s))
        if not asked:
            return None
        return replace(asked[0], lead_s=max(one.lead_s for one in asked))

    @property
    def job_name(self) -> str:
        if self.module:
            stem = self.script.rpartition(".")[2]
        else:
            file = self.script.rpartition("/")[2]
            stem = file.rpartition(".")[0] or file
        return self.name or " ".join(stem.split()) or "echelon"


# --- keys -----------------------------------------------------------------------------------


@frozen
class Key:
    """A name that users write, and how its value is read."""

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
    if key.startswith(("mem", "stage_limit")) and isinstance(value, int):
        return format_memory(value) if value else ""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={entry}" for name, entry in value.items())
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value or value != getattr(JobSpec(), KEYS[key].field) else ""
