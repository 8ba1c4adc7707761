"""Who am I among the ranks? One answer under every way of starting them.

Each launcher tells its processes in variables of its own. `detect` reads them in one order, stated
in `SOURCES`, and refuses to guess where they contradict each other. Standard library alone: it runs
in the user's own Python on the nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from echelon.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A rank's place; the words are PyTorch's."""

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
    """Whose variables told it: see SOURCES."""
    init_method: str = "env://"
    """What to give `init_process_group`."""
    gpu: int | None = None
    """Which of the visible GPUs is this rank's; None when none is granted by name."""


def detect(environ: Mapping[str, str], *, local_rank: int | None = None) -> World:
    """Return this process's place among the ranks.

    Args:
        environ: the process's variables.
        local_rank: for children of `mp.spawn`, which nothing in the environment tells apart.

    Raises:
        UsageError: variables that contradict each other, or are no numbers; both are named.
    """
    if local_rank is not None:
        return _spawned(_Variables(environ), local_rank)
    for source, applies, read in SOURCES:
        variables = _Variables(environ)
        if applies(environ):
            return read(variables, source)
    raise AssertionError("the last source always applies")


# --- reading variables ----------------------------------------------------------------------


class _Variables:
    """Numbers out of an environment, with errors that name the variable."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    def number(self, *names: str, default: int | None = None) -> int:
        """Return the first of these that is set."""
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
        """Return the value, which must be less than the limit."""
        if not value < limit:
            raise _contradiction(f"{name}={value}", f"{limit_name}={limit}")
        return value

    def agree(self, name: str, value: int, because: str) -> None:
        """Check a variable that may be set as well, and then must say the same."""
        text = self.environ.get(name, "")
        if text.isdecimal() and int(text) != value:
            raise _contradiction(f"{name}={text}", because)

    @property
    def init_method(self) -> str:
        """Set where ranks meet in a file rather than at an address."""
        return self.environ.get("ECHELON_INIT_METHOD", "env://")

    def gpu(self, local_rank: int) -> int | None:
        """Return this rank's index among the GPUs it sees: with one GPU per task, always 0."""
        visible = self.environ.get("CUDA_VISIBLE_DEVICES", "")
        count = count_devices(visible)
        if count == 0:
            return None
        return 0 if count == 1 else local_rank


def count_devices(visible: str) -> int:
    """Count the GPUs of CUDA_VISIBLE_DEVICES."""
    return len(list_devices(visible))


def list_devices(visible: str) -> list[str]:
    """Return the GPUs of CUDA_VISIBLE_DEVICES; Slurm says NoDevFiles for none, and others -1."""
    entries = [entry.strip() for entry in visible.split(",")]
    return [entry for entry in entries if entry and entry not in ("-1", "NoDevFiles")]


def _contradiction(first: str, second: str) -> UsageError:
    return UsageError(
        f"{first} contradicts {second}",
        hint="one of the two was set by hand: remove that line from the script",
    )


# --- one reader per launcher ----------------------------------------------------------------


def _torchrun(variables: _Variables, source: str) -> World:
    """RANK and its companions, as torchrun, Accelerate and Echelon set them."""
    size = variables.number("WORLD_SIZE")
    rank = variables.below(variables.number("RANK"), "RANK", size, "WORLD_SIZE")
    if "TORCHELASTIC_RUN_ID" not in variables.environ and _in_step(variables.environ):
        # Exported by a task of srun, or by hand in the batch script: then the same in every task.
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
    """Lightning's own children: WORLD_SIZE, NODE_RANK and LOCAL_RANK, but no RANK."""
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
    """One task of an srun step is one rank."""
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
    """Read Slurm's numbers per node: `2(x3),1` is 2, 2, 2, 1."""
    found: list[int] = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        if number.isdecimal():
            found += [int(number)] * (int(times.rstrip(")")) if times else 1)
    return found


def _tasks_here(variables: _Variables, node_rank: int, size: int) -> int:
    """SLURM_STEP_TASKS_PER_NODE counts the tasks on each node: `2(x3),1`."""
    environ = variables.environ
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    counts = parse_counts(text)
    return counts[node_rank] if node_rank < len(counts) else size


def _alone(variables: _Variables, source: str) -> World:
    return World(source=source, gpu=variables.gpu(0))


def _spawned(variables: _Variables, local_rank: int) -> World:
    """Read the place of a child of `mp.spawn`: the node is known, the rank on it is given."""
    if local_rank < 0:
        raise UsageError(f"local_rank={local_rank} is negative", hint="count from 0")
    size_here = variables.number("LOCAL_WORLD_SIZE", default=0)
    visible = variables.environ.get("CUDA_VISIBLE_DEVICES", "")
    size_here = size_here or count_devices(visible)
    if not size_here:
        raise UsageError(
            "LOCAL_WORLD_SIZE and CUDA_VISIBLE_DEVICES are not set: how many ranks has this node?",
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

    In a batch script SLURM_PROCID is 0 and SLURM_NTASKS the job's, yet it is one process; so is a
    shell in `salloc` or under `srun --pty`.
    """
    step = environ.get("SLURM_STEP_ID", "")
    return (
        step.isdecimal()
        and int(step) < 2**32 - 10  # Slurm's numbers for batch, external and interactive steps
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
    # A task of srun that exports these has its rank from Slurm all the same.
    ("lightning", _lightnings_child, _lightning),
    ("slurm", _in_step, _slurm),
    ("none", lambda _environ: True, _alone),
)
"""Name, whether it applies, who reads it: the first that applies decides."""
