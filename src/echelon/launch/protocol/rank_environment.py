"""The rank contract: the variables that every rank sees, on every backend. Pure.

They are torchrun's, so that scripts written for it run unmodified. Slurm's variables are rewritten
for the rank, so that scripts that read those work too. docs/reference/environment.md lists them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from echelon.core.frozen import frozen
from echelon.core.jobs import own_job
from echelon.core.nodes import expand
from echelon.errors import UsageError
from echelon.launch.protocol.messages import Start
from echelon.launch.protocol.rank_shm import VARIABLE as RANK_SHM
from echelon.run.saved import LAST

CONTROLLER = "ECHELON_CONTROLLER"
NODE = "ECHELON_NODE"
REPLACES = "ECHELON_REPLACES"
"""Pid of the agent that a new one replaces: it may only be suspended, and is killed."""
FILES = "ECHELON_FILES"
"""The user's limit of open files: the controller raises its own."""
TIED = "ECHELON_TIED"
"""Pid of the parent with which a process ends: for a controller, its command."""
HERE = "ECHELON_HERE"
"""Set if a run was started by `echelon run`: a job around it is not the run's own."""
NAME = "ECHELON_NODE_NAME"
"""The cluster's name of a node, if it is not a Slurm cluster."""
ON_RAY = "ECHELON_ON_RAY"
"""Id of the Ray job that was submitted for this run."""
ENVIRON = "ECHELON_ENVIRON"
"""Number of an open file with the variables that the job started with."""
SCRIPT = "ECHELON_SCRIPT"
"""Number of an open file with the job's script, as Slurm stores it."""
TRACKER = "ECHELON_TRACKER_ID"
"""The run's name for trackers such as W&B."""
STEP = "ECHELON_STEP"
"""Set in the processes of a step: for its controller, the number of the socket to its broker."""
STEP_HOSTS = "ECHELON_STEP_HOSTS"
"""For the controller of a step: the step's nodes."""
STEP_ADDRESS = "ECHELON_STEP_ADDRESS"
"""For the controller of a step: its address, as keepers have reached the broker."""
ZYGOTE = "ECHELON_ZYGOTE"
"""For an agent that was forked: the number of the socket to its zygote, which was forked too."""
PRIVATE = (
    CONTROLLER,
    NODE,
    NAME,
    REPLACES,
    FILES,
    TIED,
    HERE,
    ON_RAY,
    ENVIRON,
    SCRIPT,
    STEP,
    STEP_HOSTS,
    STEP_ADDRESS,
    ZYGOTE,
)
"""Used between our own processes; ranks do not see them."""


KEY_SIZE = 32
"""Length in bytes of the key with which a run's processes authenticate each other."""


def render_key(key: bytes) -> bytes:
    """Return the standard input of a process that needs the key."""
    return f"{key.hex()}\n".encode()


def receive_key(stdin: BinaryIO) -> bytes:
    """Read the key from standard input.

    A variable would stay readable for ranks in /proc/PID/environ; a pipe is empty once read.

    Raises:
        UsageError: there is no key.
    """
    line = stdin.readline(2 * KEY_SIZE + 1)
    try:
        key = bytes.fromhex(line.decode())
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE:
        raise UsageError(
            "the key of the run is missing on standard input",
            hint="agents are started by their controller; use: echelon run",
        )
    return key


def job_in(environ: Mapping[str, str]) -> str:
    """Return the id of the current job; empty if there is none."""
    return environ.get(ON_RAY) or own_job(environ)


def parse_candidates(text: str) -> list[tuple[str, int]]:
    """Parse the controller's addresses and ports from their variable."""
    found = []
    for part in text.split(","):
        address, _, port = part.rpartition(":")
        found.append((address, int(port)))
    return found


def node_in_job(environ: Mapping[str, str]) -> int:
    """Return this node's index in the job; SLURM_NODEID counts the nodes of the step instead."""
    if NODE in environ:
        return int(environ[NODE])
    hosts = expand(environ["SLURM_JOB_NODELIST"])
    return hosts.index(environ["SLURMD_NODENAME"])


@frozen
class RankFiles:
    """The files of one rank in one generation."""

    log: Path
    error: Path
    """Its record of an exception, in torch's format."""
    stacks: Path
    """Its stacks, written when a signal asks for them."""
    collectives: Path
    """What it had recorded about its collectives when it was found to hang."""
    trace: Path
    """Socket on which it answers what it has recorded."""
    rank_shm: Path
    temp: Path
    """Folder for the sockets of multiprocessing, in the rank and its descendants."""


def rank_files(log: Path, scratch: Path, rank: int) -> RankFiles:
    """Return a rank's files; most are named after its log."""
    return RankFiles(
        log=log,
        error=log.with_suffix(".error.json"),
        stacks=log.with_suffix(".stacks"),
        collectives=log.with_suffix(".collectives.json"),
        trace=scratch / f"trace-{log.parent.name}-{rank}",
        rank_shm=scratch / f"beacon-{rank}",
        temp=scratch / f"mp-{log.parent.name}-{rank}",
    )


def common_environment(
    environ: Mapping[str, str],
    *,
    run_id: str,
    run_dir: Path,
    threads: int,
    cpus: int,
    restarts: int,
    tracker: str,
) -> dict[str, str]:
    """Return the variables that all ranks of a node share, from their agent's environment.

    The zygote starts with them: libraries read some of them only when they are imported.
    """
    found = {name: value for name, value in environ.items() if name not in PRIVATE}
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # What was printed before a crash must not be lost in a buffer.
        "PYTHONUNBUFFERED": "1",
    }
    own = {
        "ECHELON_RUN_DIR": str(run_dir),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        TRACKER: tracker,
    }
    if cpus and "SLURM_JOB_ID" in environ:
        # srun sets them for tasks, the second one in newer versions, which also require that both
        # agree; the agent's own step lacks them (`backends/slurm/starter.py`).
        own |= {"SLURM_CPUS_PER_TASK": str(cpus), "SLURM_TRES_PER_TASK": f"cpu={cpus}"}
    return {**defaults, **found, **own}


def rank_environment(
    start: Start,
    local_rank: int,
    files: RankFiles,
    *,
    interface: str,
    environ: Mapping[str, str],
    mlflow: str = "",
) -> dict[str, str]:
    """Return the variables of one rank, in addition to its node's, which are `environ`.

    `mlflow` is the id of the run in MLflow, if there is one already.
    """
    rank, size = start.first_rank + local_rank, start.world_size
    found = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": start.count,
        "GROUP_RANK": start.node_rank,
        "GROUP_WORLD_SIZE": start.nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": start.address,
        "MASTER_PORT": start.port,
        "TORCHELASTIC_RESTART_COUNT": start.generation,
        "TORCHELASTIC_USE_AGENT_STORE": start.served,
        "TORCHELASTIC_ERROR_FILE": files.error,
        "ECHELON_GENERATION": start.generation,
        LAST: start.saved,
        RANK_SHM: files.rank_shm,
    }
    if rank == 0 and "WANDB_RUN_ID" not in environ:
        # All parts of a run continue one curve. Other ranks would overwrite it.
        resume = environ.get("WANDB_RESUME", "allow")
        found |= {"WANDB_RUN_ID": environ[TRACKER], "WANDB_RESUME": resume}
    if rank == 0 and mlflow and "MLFLOW_RUN_ID" not in environ:
        found["MLFLOW_RUN_ID"] = mlflow
    if interface:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            found[name] = environ.get(name) or interface
    if "SLURM_JOB_ID" in environ:
        per_node = f"{start.count}(x{start.nodes})"
        found |= {
            "SLURM_PROCID": rank,
            "SLURM_LOCALID": local_rank,
            "SLURM_NODEID": start.node_rank,
            "SLURM_NTASKS": size,
            "SLURM_NPROCS": size,
            "SLURM_NTASKS_PER_NODE": start.count,
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_NNODES": start.nodes,
            "SLURM_STEP_NUM_TASKS": size,
            "SLURM_STEP_NUM_NODES": start.nodes,
            "SLURM_STEP_TASKS_PER_NODE": per_node,
        }
    return {name: str(value) for name, value in found.items()}
