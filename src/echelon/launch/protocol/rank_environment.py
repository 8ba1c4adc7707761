"""The rank contract: the variables that every rank sees, whatever started it. Pure.

They are torchrun's, so that scripts written for it run unmodified; Slurm's own are rewritten to the
rank's, so that scripts which read those do too. docs/reference/environment.md lists them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from echelon.core.nodes import expand
from echelon.errors import UsageError
from echelon.launch.protocol.messages import Start
from echelon.launch.protocol.rank_shm import VARIABLE as BEACON

CONTROLLER = "ECHELON_CONTROLLER"
NODE = "ECHELON_NODE"
REPLACES = "ECHELON_REPLACES"
"""Holds the pid of the agent in whose place another comes: it may only be stopped."""
FILES = "ECHELON_FILES"
"""Holds how many files a process may have open: a controller allows itself more."""
TIED = "ECHELON_TIED"
"""Holds the pid of a parent whose end is ours too: of a controller its command."""
HERE = "ECHELON_HERE"
"""Says that a run was started here and now: a job around it is not the run's own."""
NAME = "ECHELON_NODE_NAME"
"""Holds what the cluster calls a node, where it is not Slurm that says so."""
ON_RAY = "ECHELON_ON_RAY"
"""Holds the id of the job of Ray that was submitted for this run."""
ENVIRON = "ECHELON_ENVIRON"
"""Holds the number of a file from which the variables of the job's first moment can be read."""
SCRIPT = "ECHELON_SCRIPT"
"""Holds the number of a file from which the job's own script can be read, as Slurm keeps it."""
PRIVATE = (CONTROLLER, NODE, NAME, REPLACES, FILES, TIED, HERE, ON_RAY, ENVIRON, SCRIPT)
"""Between our own processes; no rank sees them."""


KEY_SIZE = 32
"""Bytes of the key by which a run's processes know each other."""


def render_key(key: bytes) -> bytes:
    """Return the input of a process that is given the key."""
    return f"{key.hex()}\n".encode()


def receive_key(stdin: BinaryIO) -> bytes:
    """Read the key from a process's input.

    Variables stay readable in /proc/PID/environ, where ranks would find it; a pipe is empty once it
    has been read.

    Raises:
        UsageError: whatever started us gave us none.
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
    """Return the id of the job that we are in; empty where there is none."""
    return environ.get(ON_RAY) or environ.get("SLURM_JOB_ID", "")


def parse_candidates(text: str) -> list[tuple[str, int]]:
    """Read where the controller can be reached, of the variable that says so."""
    found = []
    for part in text.split(","):
        address, _, port = part.rpartition(":")
        found.append((address, int(port)))
    return found


def node_in_job(environ: Mapping[str, str]) -> int:
    """Return our node's place in the job; in a step that spans part of it, Slurm counts anew."""
    hosts = expand(environ["SLURM_JOB_NODELIST"])
    return hosts.index(environ["SLURMD_NODENAME"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """The files of one rank in one generation."""

    log: Path
    error: Path
    """Where it leaves the record of an exception, in torch's own format."""
    stacks: Path
    """Where it writes its stacks when asked."""
    beacon: Path
    temp: Path
    """The folder for the sockets of multiprocessing, in the rank and in what it starts."""


def rank_files(log: Path, scratch: Path, rank: int) -> RankFiles:
    """Return a rank's files: its log decides where the others are."""
    return RankFiles(
        log=log,
        error=log.with_suffix(".error.json"),
        stacks=log.with_suffix(".stacks"),
        beacon=scratch / f"beacon-{rank}",
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
) -> dict[str, str]:
    """Return what is the same for all ranks of a node, from their agent's own environment.

    The zygote starts with it: libraries read some of it when they are imported, and never again.
    """
    found = {name: value for name, value in environ.items() if name not in PRIVATE}
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        # A print before a crash must not die in a buffer.
        "PYTHONUNBUFFERED": "1",
    }
    own = {
        "ECHELON_RUN_DIR": str(run_dir),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
    }
    if cpus and "SLURM_JOB_ID" in environ:
        # srun sets it for tasks; the agent's own step lacks it (`backends/slurm/starter.py`).
        own["SLURM_CPUS_PER_TASK"] = str(cpus)
    return {**defaults, **found, **own}


def rank_environment(
    start: Start, local_rank: int, files: RankFiles, *, interface: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what one rank has beside its node's common variables, which are `environ`."""
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
        BEACON: files.beacon,
    }
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
