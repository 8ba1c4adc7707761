"""The request: what to run, on which resources, and in which environment.

Each key is one field, with its flag, reader, help text and other facts (keys.py). Options, files,
documentation and checks are derived from these. merging.py merges layers into one request, and
conflicts.py finds conflicting values in it.
"""

from collections.abc import Mapping
from dataclasses import replace

from echelon.core.frozen import frozen
from echelon.spec import readers
from echelon.spec.keys import (
    CHECKS,
    ENVIRONMENT,
    EVERYDAY,
    FAST_START,
    IMAGE,
    NOTIFICATION,
    ONLY_SLURM,
    RECOVERY,
    RESOURCES,
    ROLE,
    collect_keys,
    key,
)
from echelon.spec.readers import LimitSignal, NodeCount

STYLES = ("echelon", "srun", "spawn", "file", "static", "torchrun", "ray")
"""How ranks can be started: docs/styles.md."""

GPU_OPTIONS = ("gres", "gpus-per-node", "gpus-per-task", "gpus")
"""How to request GPUs; sites differ."""

RUNTIMES = ("apptainer", "singularity", "podman", "pyxis")
"""Container runtimes: docs/guides/containers.md."""

RESTARTS = 3
"""Default number of restarts, if the script can resume."""


@frozen
class JobSpec:
    """What the user requests. Empty or 0 means not requested: Slurm's or the site's default.

    Each entry has the flag and its help; then the section of the help text, the reader, the
    default, and what else `Key` describes. Two or three lines per entry, to be read as a table.
    """

    # fmt: off
    script: str = key(
        "SCRIPT", "the training script",
        EVERYDAY, readers.text, "", scope=ROLE)
    args: tuple[str, ...] = key(
        "ARGS ...", "arguments of the script",
        EVERYDAY, readers.words, (), scope=ROLE)
    module: bool = key(
        "--module -m", "treat the script as a module name, like python -m",
        ENVIRONMENT, readers.switch, False, scope=ROLE, rank=1)
    style: str = key(
        "--style STYLE", "how to start the ranks, such as srun or torchrun",
        ENVIRONMENT, readers.OneOf(STYLES), "echelon", scope=ROLE, rank=1)
    name: str = key(
        "--name NAME", "job name [default: the script's name]",
        EVERYDAY, readers.text, "", rank=2, sbatch="job-name")

    partition: str = key(
        "--partition NAME", "partition, or several separated by commas",
        EVERYDAY, readers.text, "", rank=1, sbatch="partition", unused=ONLY_SLURM)
    account: str = key(
        "--account NAME", "account to charge",
        EVERYDAY, readers.text, "", rank=1, sbatch="account", unused=ONLY_SLURM)
    qos: str = key(
        "--qos NAME", "quality of service",
        RESOURCES, readers.text, "", rank=2, sbatch="qos", unused=ONLY_SLURM)
    constraint: str = key(
        "--constraint FEATURES", "node features required",
        RESOURCES, readers.text, "", rank=2, sbatch="constraint", unused=ONLY_SLURM)
    nodelist: str = key(
        "--nodelist NODES", "nodes to use",
        RESOURCES, readers.hosts, "", rank=2, sbatch="nodelist", unused=ONLY_SLURM)
    exclude: str = key(
        "--exclude NODES", "nodes to avoid",
        RESOURCES, readers.hosts, "", rank=2, sbatch="exclude", unused=ONLY_SLURM)
    dependency: str = key(
        "--dependency LIST", "job dependencies, in sbatch's syntax",
        RESOURCES, readers.text, "", rank=2, sbatch="dependency", unused=ONLY_SLURM)

    nodes: NodeCount = key(
        "--nodes N", "number of nodes, such as 2 or 2:4",
        EVERYDAY, readers.nodes, NodeCount(), scope=ROLE, sbatch="nodes")
    gpus: int = key(
        "--gpus N", "GPUs per node",
        EVERYDAY, readers.count, 0, scope=ROLE, sbatch="gpus")
    gpu_type: str = key(
        "--gpu-type NAME", "GPU type",
        RESOURCES, readers.text, "", unused=ONLY_SLURM)
    gpu_option: str = key(
        "--gpu-option OPTION", "how to request GPUs, such as gpus-per-node",
        RESOURCES, readers.OneOf(GPU_OPTIONS), "gres", unused=ONLY_SLURM)
    procs: int = key(
        "--procs N", "ranks per node [default: one per GPU]",
        EVERYDAY, readers.positive, 0, scope=ROLE)
    cpus_per_task: int = key(
        "--cpus-per-task N", "CPUs per rank",
        EVERYDAY, readers.positive, 0, scope=ROLE, sbatch="cpus-per-task")
    cpus_per_gpu: int = key(
        "--cpus-per-gpu N", "CPUs per GPU",
        RESOURCES, readers.positive, 0, scope=ROLE, sbatch="cpus-per-gpu", unused=("local",))
    mem_mib: int = key(
        "--mem SIZE", "memory per node",
        EVERYDAY, readers.memory, 0,
        name="mem", sbatch="mem", in_extra=True, unused=("local",))
    mem_per_cpu_mib: int = key(
        "--mem-per-cpu SIZE", "memory per CPU",
        RESOURCES, readers.memory, 0,
        rank=1, name="mem_per_cpu", sbatch="mem-per-cpu", unused=("local",))
    mem_per_gpu_mib: int = key(
        "--mem-per-gpu SIZE", "memory per GPU",
        RESOURCES, readers.memory, 0,
        name="mem_per_gpu", sbatch="mem-per-gpu", unused=("local",))
    time: str = key(
        "--time TIME", "time limit",
        EVERYDAY, readers.duration, "", sbatch="time", unused=ONLY_SLURM)
    wait_all_nodes: bool = key(
        "--wait-all-nodes", "start only when all nodes are ready",
        RESOURCES, readers.switch, False,
        rank=3, sbatch="wait-all-nodes", in_extra=True, unused=ONLY_SLURM)
    signal_lead_s: int = key(
        "--signal-lead TIME", "warn ranks this long before the time limit",
        RECOVERY, readers.seconds, 0, rank=1, name="signal_lead", unused=("ray",))

    restarts: int | None = key(
        "--restarts N", f"maximum number of restarts after failures [default: {RESTARTS}; "
        "0 if the script does not use echelon]",
        RECOVERY, readers.count, None, scope=ROLE, unused=("style",))
    hang_timeout_s: int = key(
        "--hang-timeout TIME",
        "time without progress that counts as a hang; 0 turns detection off",
        RECOVERY, readers.seconds, 300, scope=ROLE, name="hang_timeout", unused=("style",))
    on_hang: str = key(
        "--on-hang ACTION", "what to do about a hang: report, restart or stop",
        RECOVERY, readers.OneOf(("report", "restart", "stop")), "report",
        scope=ROLE, unused=("style",))
    grace_s: int = key(
        "--grace TIME", "time between the request to stop and SIGKILL",
        RECOVERY, readers.seconds, 30, scope=ROLE, name="grace", unused=("style",))
    hand_over: str = key(
        "--hand-over WHEN",
        "whether another job continues the run: auto, always, requeue or never",
        RECOVERY, readers.OneOf(("auto", "always", "requeue", "never")), "auto", rank=2)
    telemetry: bool = key(
        "--telemetry true|false", "measure nodes and ranks once a second",
        CHECKS, readers.switch, True, rank=2)
    log_level: str = key(
        "--log-level LEVEL", "what controller and agents write to their debug logs: info or debug",
        CHECKS, readers.OneOf(("info", "debug")), "info", rank=3, unused=("style",))
    node_check: str = key(
        "--node-check COMMAND", "command that must succeed on a node before it is used",
        CHECKS, readers.text, "", rank=1, unused=("style",))
    forgive_after_s: int = key(
        "--forgive-after TIME", "how long to avoid a bad node; 0 turns this off",
        CHECKS, readers.seconds, 7 * 24 * 3600,
        rank=1, name="forgive_after", unused=("style", "ray"))
    preflight: bool = key(
        "--preflight", "examine all nodes first, and avoid those that fail",
        CHECKS, readers.switch, False, unused=("ray",))
    preload: tuple[str, ...] = key(
        "--preload NAME,…", "modules to import once for all ranks",
        ENVIRONMENT, readers.words, ("torch",), scope=ROLE, rank=2, unused=("style",))

    chdir: str = key(
        "--chdir DIR", "working directory [default: the current one]",
        ENVIRONMENT, readers.text, "", rank=2, sbatch="chdir")
    output: str = key(
        "--output FILE", "Slurm's output file; patterns such as %j work",
        ENVIRONMENT, readers.text, "", rank=2, sbatch="output", unused=ONLY_SLURM)
    notify: str = key(
        "--notify COMMAND", "command to run once when the run is over",
        NOTIFICATION, readers.text, "", unused=("style",))
    mail: str = key(
        "--mail ADDRESS", "address to mail once when the run is over",
        NOTIFICATION, readers.address, "", unused=ONLY_SLURM)
    mail_user: str = key(
        "--mail-user ADDRESS", "address for Slurm's mail about each job",
        NOTIFICATION, readers.text, "", sbatch="mail-user", unused=ONLY_SLURM)
    mail_type: tuple[str, ...] = key(
        "--mail-type EVENT,…", "events of a job to mail about",
        NOTIFICATION, readers.mail_types, (), sbatch="mail-type", unused=ONLY_SLURM)

    snapshot: bool | None = key(
        "--snapshot/--no-snapshot",
        "execute a copy of the code as it is now [default: in jobs, not on this machine]",
        ENVIRONMENT, readers.switch, None)
    python: str = key(
        "--python FILE", "Python interpreter of the ranks",
        ENVIRONMENT, readers.text, "", scope=ROLE, rank=1)
    venv: str = key(
        "--venv DIR", "virtual environment to activate",
        EVERYDAY, readers.text, "", scope=ROLE, rank=2)
    conda: str = key(
        "--conda NAME", "conda environment to activate",
        ENVIRONMENT, readers.text, "", scope=ROLE, rank=1)
    modules: tuple[str, ...] = key(
        "--load NAME ...", "environment modules to load",
        ENVIRONMENT, readers.words, (), scope=ROLE, rank=1)
    prologue: tuple[str, ...] = key(
        "--prologue LINE ...", "bash lines to run before the script",
        ENVIRONMENT, readers.lines, (), scope=ROLE, rank=1)
    env: Mapping[str, str] = key(
        "--env NAME=VALUE ...", "environment variables for all ranks",
        ENVIRONMENT, readers.table, {}, scope=ROLE, rank=1)
    image: str = key(
        "--image IMAGE", "container image of the ranks, or its file",
        IMAGE, readers.text, "", scope=ROLE)
    image_runtime: str = key(
        "--image-runtime NAME",
        "container runtime, such as apptainer [default: the first one installed]",
        IMAGE, readers.OneOf(RUNTIMES), "", scope=ROLE)
    image_mounts: tuple[str, ...] = key(
        "--image-mounts DIR,…", "folders to mount in the image, beside home, project and run",
        IMAGE, readers.words, (), scope=ROLE)
    image_env: Mapping[str, str] = key(
        "--image-env NAME=VALUE ...", "environment variables in the image",
        IMAGE, readers.table, {}, scope=ROLE)
    image_workdir: str = key(
        "--image-workdir DIR", "working directory in the image [default: the same as outside]",
        IMAGE, readers.text, "", scope=ROLE)
    image_python: str = key(
        "--image-python FILE", "Python interpreter in the image [default: python3]",
        IMAGE, readers.text, "", scope=ROLE)
    image_options: tuple[str, ...] = key(
        "--image-options OPTION ...", "more options of the runtime",
        IMAGE, readers.lines, (), scope=ROLE)
    image_cache: str = key(
        "--image-cache DIR", "folder for imported images [default: ~/.cache/echelon/images]",
        IMAGE, readers.text, "")
    stage: bool = key(
        "--stage/--no-stage", "copy the environment or image to each node's own disk first",
        FAST_START, readers.switch, False)
    stage_dir: str = key(
        "--stage-dir DIR", "folder for these copies; %N is the node's name "
        "[default: /var/tmp/echelon-stage-UID]",
        FAST_START, readers.text, "")
    stage_limit_mib: int = key(
        "--stage-limit SIZE", "disk space for these copies",
        FAST_START, readers.memory, 50 << 10, name="stage_limit")
    slurm_extra: Mapping[str, str] = key(
        "--slurm OPTION=VALUE ...", "any other sbatch option",
        RESOURCES, readers.options, {}, rank=3, name="slurm.extra", unused=ONLY_SLURM)
    # fmt: on

    # Derived values

    def allowed_restarts(self, *, uses_library: bool) -> int | None:
        """Return how many restarts the run may have; None if restarts were not requested.

        A script that does not resume would begin at step 0 and overwrite its checkpoints. A request
        to restart hung ranks, or to continue with fewer nodes or in another job, shows that the
        script resumes.
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
        """CPUs that a rank may use; 0 if not requested."""
        if self.cpus_per_task:
            return self.cpus_per_task
        return (
            max(1, self.cpus_per_gpu * self.gpus // self.procs_per_node) if self.cpus_per_gpu else 0
        )

    @property
    def limit_lead_s(self) -> int:
        """How long before the time limit ranks are warned, at least; 0 if not requested."""
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
        """The signal that warns ranks before the time limit; None if not requested.

        Both sbatch's --signal and `signal_lead` request it. The longer time applies.
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


KEYS = collect_keys(JobSpec)
"""The keys of a request by name, in the order of the fields."""
