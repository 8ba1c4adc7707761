"""A ledger of slots, and the variables that confine a process to its slot. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from echelon.core.frozen import frozen
from echelon.core.nodes import compress


@frozen
class Ask:
    """What a step needs."""

    nodes: int = 1
    gpus: int = 0
    """GPUs on each node."""
    cpus: int = 1
    """CPUs on each node. A step with GPUs gets those that belong to its GPUs instead."""
    sharing: int = 1
    """How many such steps may share the same GPUs and CPUs."""


@frozen
class Slot:
    """A share of a node's GPUs and CPUs: positions among those that the node was granted."""

    node: int
    gpus: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    part: Fraction = Fraction(1)
    """How much of them it takes."""


class Ledger:
    """Knows what is free on each node."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}

    def add(self, node: int, *, gpus: int, cpus: int) -> None:
        """Add a node whose GPUs and CPUs are all free."""
        self._nodes[node] = _Node(node, gpus, cpus)

    def remove(self, node: int) -> None:
        """Remove a node, with all slots that were taken of it."""
        self._nodes.pop(node, None)

    def take(self, ask: Ask) -> list[Slot] | None:
        """Take the slots that a step needs, each on another node; None if they are not free."""
        found = []
        for node in self._nodes.values():
            if slot := node.find(ask):
                found.append(slot)
            if len(found) == ask.nodes:
                self.hold(found)
                return found
        return None

    def hold(self, slots: Sequence[Slot]) -> None:
        """Mark slots as taken."""
        for slot in slots:
            self._nodes[slot.node].add(slot, slot.part)

    def give_back(self, slots: Sequence[Slot]) -> None:
        """Free slots, except those of nodes that were removed."""
        for slot in slots:
            if slot.node in self._nodes:
                self._nodes[slot.node].add(slot, -slot.part)

    def offers(self, ask: Ask) -> bool:
        """Tell whether the step could run if nothing else did."""
        fits = [one for one in self._nodes.values() if _Node(one.node, *one.size).find(ask)]
        return len(fits) >= ask.nodes

    def describe(self) -> str:
        """Return what the nodes have."""
        sizes = Counter(one.size for one in self._nodes.values())
        have = [
            f"{count} with {gpus} GPUs and {cpus} CPUs" for (gpus, cpus), count in sizes.items()
        ]
        return f"there are {', '.join(have)}" if have else "none is left"


class _Node:
    def __init__(self, node: int, gpus: int, cpus: int) -> None:
        self.node, self.size = node, (gpus, cpus)
        self._gpus, self._cpus = [Fraction()] * gpus, [Fraction()] * cpus
        """How much of each is taken."""

    def find(self, ask: Ask) -> Slot | None:
        part = Fraction(1, ask.sharing)
        gpus = _choose(self._gpus, ask.gpus, part)
        cpus = self._cpus_of(gpus) if ask.gpus else _choose(self._cpus, ask.cpus, part)
        if gpus is None or cpus is None:
            return None
        return Slot(node=self.node, gpus=gpus, cpus=cpus, part=part)

    def _cpus_of(self, gpus: Sequence[int] | None) -> tuple[int, ...]:
        """Return the CPUs that belong to some GPUs: each has an equal share of the node's."""
        count, total = len(self._gpus), len(self._cpus)
        return tuple(
            cpu
            for gpu in gpus or ()
            for cpu in range(gpu * total // count, (gpu + 1) * total // count)
        )

    def add(self, slot: Slot, part: Fraction) -> None:
        for taken, chosen in ((self._gpus, slot.gpus), (self._cpus, slot.cpus)):
            for position in chosen:
                taken[position] += part


def _choose(taken: Sequence[Fraction], count: int, part: Fraction) -> tuple[int, ...] | None:
    """Return the least used positions; None if too few have that much left."""
    free = [position for position, used in enumerate(taken) if used + part <= 1]
    if len(free) < count:
        return None
    return tuple(sorted(sorted(free, key=lambda position: taken[position])[:count]))


# --- what the processes of a step see ----------------------------------------------------------


def job_environment(environ: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return Slurm's variables about the nodes of a step, as if it were a job of its own."""
    if "SLURM_JOB_ID" not in environ:
        return {}
    listed, count = compress(list(hosts)), str(len(hosts))
    names = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
    counts = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES")
    return {**dict.fromkeys(names, listed), **dict.fromkeys(counts, count)}


def slot_environment(
    environ: Mapping[str, str], slot: Slot, hosts: Sequence[str]
) -> dict[str, str]:
    """Return the variables that restrict a step's agent to its slot.

    Args:
        environ: variables of the node's keeper.
        slot: the slot.
        hosts: the nodes of the step.
    """
    found = job_environment(environ, hosts)
    devices = [word for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    if "CUDA_VISIBLE_DEVICES" in environ:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices[gpu] for gpu in slot.gpus)
    if "SLURM_JOB_ID" in environ:
        found["SLURM_CPUS_ON_NODE"] = str(len(slot.cpus))
        found["SLURM_JOB_CPUS_PER_NODE"] = f"{len(slot.cpus)}(x{len(hosts)})"
        found["SLURM_GPUS_ON_NODE"] = str(len(slot.gpus))
        for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
            granted = [word for word in environ.get(name, "").split(",") if word]
            if len(granted) == len(devices):
                found[name] = ",".join(granted[gpu] for gpu in slot.gpus)
    return found
