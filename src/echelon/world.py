"""Find this process's rank, whichever launcher started it.

Each launcher sets its own variables. `detect` reads them in the order of `SOURCES`, and raises an
error if they contradict each other. Standard library only: it runs in the user's Python on the
nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from echelon.core.frozen import frozen
from echelon.errors import UsageError

SHARE_GPU = "ECHELON_SHARE_GPU"
"""`1`: ranks may share a GPU with NCCL 2.30 or newer. For tests: it is slower than one rank."""


@frozen
class World:
    """A rank's place, in PyTorch's terms."""

    rank: int = 0
    """0 … world_size - 1, over all nodes."""
    local_rank: int = 0
    """0 … local_world_size - 1, on this node."""
    node_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    """Ranks on this node; nodes may differ."""
    nodes: int = 1
    source: str = "none"
    """The launcher whose variables were used: see SOURCES."""
    init_method: str = "env://"
    """The argument for `init_process_group`."""
    gpu: int | None = None
    """Index of this rank's GPU among the visible ones; None if CUDA_VISIBLE_DEVICES lists none."""


def detect(environ: Mapping[str, str], *, local_rank: int | None = None) -> World:
    """Return this process's place among the ranks.

    Args:
        environ: the process's variables.
        local_rank: for children of `mp.spawn`, whose environments are all the same.

    Raises:
        UsageError: variables contradict each other, or are not numbers; the message names them.
    """
    variables = _Variables(environ)
    if local_rank is not None:
        return _spawned(variables, local_rank)
    for source, applies, read in SOURCES:
        if applies(environ):
            return read(variables, source)
    raise AssertionError("the last source always applies")


# --- reading variables ----------------------------------------------------------------------


class _Variables:
    """Reads numbers from an environment; errors name the variable."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the first of these variables that is set."""
        for name in names:
            if (text := self.environ.get(name, "")) == "":
                continue
            if not text.isdecimal():
                raise UsageError(
                    f"{name}='{text}' is not a number",
                    hint=f"unset {name}, or let the launcher set it",
                )
            return int(text)
        if default is None:
            raise UsageError(
                f"{names[0]} is not set", hint="start the script with a launcher that sets it"
            )
        return default

    def below(self, value: int, name: str, limit: int, limit_name: str) -> int:
        """Return a value that must be less than a limit."""
        if not value < limit:
            raise _contradiction(f"{name}={value}", f"{limit_name}={limit}")
        return value

    def agree(self, name: str, value: int, because: str) -> None:
        """Check that a variable, if it is set, has this value."""
        text = self.environ.get(name, "")
        if text.isdecimal() and int(text) != value:
            raise _contradiction(f"{name}={text}", because)

    @property
    def init_method(self) -> str:
        """Set if ranks meet at a file instead of an address."""
        return self.environ.get("ECHELON_INIT_METHOD", "env://")

    def gpu(self, local_rank: int) -> int | None:
        """Return this rank's index among the GPUs it sees: with one GPU per task, always 0."""
        visible = self.environ.get("CUDA_VISIBLE_DEVICES", "")
        count = count_devices(visible)
        if count == 0:
            return None
        return 0 if count == 1 else local_rank


def count_devices(visible: str) -> int:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES."""
    return len(list_devices(visible))


def list_devices(visible: str) -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES; NoDevFiles (Slurm) and -1 mean none."""
    entries = [entry.strip() for entry in visible.split(",")]
    return [entry for entry in entries if entry and entry not in ("-1", "NoDevFiles")]


def _contradiction(first: str, second: str) -> UsageError:
    return UsageError(
        f"{first} contradicts {second}",
        hint="one of the two was set by hand: remove that line from the script",
    )


# --- one reader per launcher ----------------------------------------------------------------


def _torchrun(variables: _Variables, source: str) -> World:
    """Read RANK and related variables, as torchrun, Accelerate and Echelon set them."""
    size = variables.number("WORLD_SIZE")
    rank = variables.below(variables.number("RANK"), "RANK", size, "WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in variables.environ and _in_step(variables.environ):
        # Set by each task of srun, or by the batch script: then they are the same in every task.
        variables.agree("SLURM_PROCID", rank, f"RANK={rank}")
        if "LOCAL_RANK" not in variables.environ:
            return replace(_slurm(variables, source), rank=rank, world_size=size)
    local_size = variables.number("LOCAL_WORLD_SIZE", default=size)
    local_rank = variables.number("LOCAL_RANK", default=rank)
    if variables.environ.get("LOCAL_WORLD_SIZE"):
        variables.below(local_rank, "LOCAL_RANK", local_size, "LOCAL_WORLD_SIZE")
    nodes = variables.number("GROUP_WORLD_SIZE", default=max(1, -(-size // local_size)))
    return World(
        rank=rank,
        local_rank=local_rank,
        node_rank=variables.number("GROUP_RANK", "NODE_RANK", default=rank // local_size),
        world_size=size,
        local_world_size=local_size,
        nodes=nodes,
        source=source,
        init_method=variables.init_method,
        gpu=variables.gpu(local_rank),
    )


def _lightning(variables: _Variables, source: str) -> World:
    """Read the variables of Lightning's children: WORLD_SIZE, NODE_RANK, LOCAL_RANK; no RANK."""
    size, node_rank = variables.number("WORLD_SIZE"), variables.number("NODE_RANK", default=0)
    local_rank = variables.number("LOCAL_RANK")
    local_size = variables.number("LOCAL_WORLD_SIZE", default=0)
    if not local_size:
        if node_rank:
            raise UsageError(
                f"NODE_RANK={node_rank} without RANK or LOCAL_WORLD_SIZE leaves the rank unknown",
                hint="start the ranks with srun, torchrun or echelon",
            )
        local_size = size
    rank = variables.below(node_rank * local_size + local_rank, "the rank", size, "WORLD_SIZE")
    return World(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=size,
        local_world_size=local_size,
        nodes=max(1, -(-size // local_size)),
        source=source,
        gpu=variables.gpu(local_rank),
    )


def _slurm(variables: _Variables, source: str) -> World:
    """Read the variables of srun: each task of a step is a rank."""
    size = variables.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    rank = variables.below(variables.number("SLURM_PROCID"), "SLURM_PROCID", size, "SLURM_NTASKS")
    variables.agree("WORLD_SIZE", size, f"SLURM_NTASKS={size}")
    variables.agree("RANK", rank, f"SLURM_PROCID={rank}")
    local_rank = variables.number("SLURM_LOCALID")
    node_rank = variables.number("SLURM_NODEID", default=0)
    return World(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=size,
        local_world_size=_tasks_here(variables, node_rank, size),
        nodes=variables.number("SLURM_STEP_NUM_NODES", "SLURM_NNODES", default=1),
        source=source,
        init_method=variables.init_method,
        gpu=variables.gpu(local_rank),
    )


def parse_counts(text: str) -> list[int]:
    """Parse Slurm's counts per node: `2(x3),1` is 2, 2, 2, 1."""
    found: list[int] = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        if number.isdecimal():
            found += [int(number)] * (int(times.rstrip(")")) if times else 1)
    return found


def _tasks_here(variables: _Variables, node_rank: int, size: int) -> int:
    """Return the tasks on this node, from SLURM_STEP_TASKS_PER_NODE: `2(x3),1`."""
    environ = variables.environ
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    counts = parse_counts(text)
    return counts[node_rank] if node_rank < len(counts) else size


def _alone(variables: _Variables, source: str) -> World:
    return World(source=source, gpu=variables.gpu(0))


def _spawned(variables: _Variables, local_rank: int) -> World:
    """Return the place of a child of `mp.spawn`, from its node's variables and its local rank."""
    if local_rank < 0:
        raise UsageError(f"local_rank={local_rank} is negative", hint="count from 0")
    size_here = variables.number("LOCAL_WORLD_SIZE", default=0)
    visible = variables.environ.get("CUDA_VISIBLE_DEVICES", "")
    size_here = size_here or count_devices(visible)
    if not size_here:
        raise UsageError(
            "LOCAL_WORLD_SIZE and CUDA_VISIBLE_DEVICES are not set: the rank is unknown",
            hint="export LOCAL_WORLD_SIZE=<processes per node>",
        )
    variables.below(local_rank, "local_rank", size_here, "LOCAL_WORLD_SIZE")
    nodes = variables.number("GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", default=1)
    node_rank = variables.number("GROUP_RANK", "NODE_RANK", "SLURM_NODEID", default=0)
    variables.below(node_rank, "node rank", nodes, "number of nodes")
    if _in_step(variables.environ):
        tasks = variables.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", default=nodes)
        if tasks != nodes:
            raise UsageError(
                f"{tasks} tasks on {nodes} nodes would each spawn the same {size_here} ranks",
                hint="start one task per node: srun --ntasks-per-node=1",
            )
    return World(
        rank=node_rank * size_here + local_rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=nodes * size_here,
        local_world_size=size_here,
        nodes=nodes,
        source="spawn",
        init_method=variables.init_method,
        gpu=variables.gpu(local_rank),
    )


# --- the order ------------------------------------------------------------------------------


def _in_step(environ: Mapping[str, str]) -> bool:
    """Tell whether srun started this process as a task.

    A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, but is a single process; so is a
    shell in `salloc` or under `srun --pty`.
    """
    step = environ.get("SLURM_STEP_ID", "")
    return (
        step.isdecimal()
        and int(step) < 2**32 - 10  # above: batch, external and interactive steps
        and "SLURM_PROCID" in environ
        and "SLURM_PTY_PORT" not in environ
    )


def _set(*names: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda environ: all(environ.get(name, "") != "" for name in names)


def _lightnings_child(environ: Mapping[str, str]) -> bool:
    return _set("LOCAL_RANK", "WORLD_SIZE")(environ) and not _in_step(environ)


SOURCES: tuple[
    tuple[str, Callable[[Mapping[str, str]], bool], Callable[[_Variables, str], World]], ...
] = (
    ("torchrun", _set("RANK", "WORLD_SIZE"), _torchrun),
    # A task of srun that exports these still gets its rank from Slurm.
    ("lightning", _lightnings_child, _lightning),
    ("slurm", _in_step, _slurm),
    ("none", lambda _environ: True, _alone),
)
"""Name, whether it applies, and its reader; the first that applies is used."""
