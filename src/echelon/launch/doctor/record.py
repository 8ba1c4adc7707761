"""Results of an examination, as plain values; judge.py derives the findings from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The first look at a node, from a few lines of sh."""

    error: str = ""
    """Why there was no output, or why it stopped early."""
    hostname: str = ""
    skew_low_s: float = 0.0
    """Lower bound of how far its clock is ahead of ours."""
    skew_high_s: float = 0.0
    """Upper bound; its clock was read at some time between our question and its answer."""
    folder: str = ""
    """`seen`, `missing`, or `stale`: the directory exists, but not the file just written to it."""
    folder_late_s: int = 0
    """Whole seconds until the file appeared."""
    folder_type: str = ""
    """The file system type, as the kernel names it."""
    python: str = ""
    """The resolved path of the requested Python."""
    python_version: str = ""
    python_prefix: str = ""
    """Its sys.prefix."""
    python_error: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    """`files`, `locked_kib`, `processes`; -1 is unlimited."""
    shm_mib: int = -1
    """Size of /dev/shm; -1 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as reported by its driver."""

    index: int
    name: str = ""
    uuid: str = ""
    memory_mib: int = 0
    ecc_errors: int = 0
    """Uncorrected errors since the driver was loaded."""
    throttle: Sequence[str] = ()
    """Reasons for reduced clocks, other than those of an idle GPU."""
    tflops: float = 0.0
    """Of a large matrix product in bf16; 0 if not measured."""
    memory_gbs: float = 0.0
    """Bytes read and written per second during a copy, in 1e9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node's probe reports."""

    skew_s: float = 0.0
    """How far its clock is ahead of ours, from the quickest of several exchanges."""
    interface: str = ""
    """The interface that leads to the doctor."""
    mtu: int = 0
    """The MTU of that interface."""
    addresses: Sequence[str] = ()
    unresolved: Sequence[str] = ()
    """Node names that do not resolve, or resolve wrongly: `node3`, `node3 (127.0.1.1)`."""
    unnamed: Sequence[str] = ()
    """Node addresses without a name."""
    folder_late_s: float = 0.0
    """Seconds until a file that we wrote appeared; negative if it never did."""
    rdma: bool = False
    """Whether there is an InfiniBand or RoCE device, which needs locked memory."""
    in_job: bool = False
    """Whether it runs in a Slurm job, where GPUs that were not granted are not ours."""
    granted: int = 0
    """Number of GPUs or MIG instances in CUDA_VISIBLE_DEVICES."""
    parts: bool = False
    """Whether they are MIG instances."""
    driver: str = ""
    gpus: Sequence[Gpu] = ()
    """All GPUs that the driver shows; some may belong to other jobs."""
    ours: Sequence[int] | None = None
    """Indices of our GPUs, in torch's order; None if they cannot be determined."""
    gpu_error: str = ""
    """Why the driver could not be queried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What a node's torch reports."""

    error: str = ""
    """Why it cannot be imported."""
    import_s: float = 0.0
    version: str = ""
    cuda: str = ""
    """The CUDA version it was built for; empty for a CPU build."""
    nccl: str = ""
    devices: int = 0
    """Number of GPUs that it can use."""
    device_error: str = ""
    """Why it cannot use any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """All results for a node."""

    name: str
    look: Look = field(default_factory=Look)
    lost: str = ""
    """Why its probe did not connect, or ended."""
    facts: Facts | None = None
    torch: Torch | None = None
    unreached: Sequence[str] = ()
    """Nodes whose ports it cannot reach."""
    tried: Sequence[str] = ()
    """Nodes whose ports it tried."""

    @property
    def skew_s(self) -> float:
        """The smallest clock difference that is consistent with what was measured."""
        low_s, high_s = self.look.skew_low_s, self.look.skew_high_s
        if not low_s <= 0 <= high_s:
            return min(low_s, high_s, key=abs)
        return self.facts.skew_s if self.facts else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Result of an all-reduce over some nodes."""

    nodes: tuple[str, ...]
    ranks: int = 0
    backend: str = ""
    bandwidth: float = 0.0
    """Bytes per second on each rank's link ("bus bandwidth": comparable between sizes)."""
    latency_s: float = 0.0
    """Shortest time of an all-reduce of one number."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """All results of an examination."""

    nodes: Sequence[Node]
    pairs: Sequence[Group] = ()
    overall: Group | None = None
    """Over all nodes that can participate."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem."""

    severity: Severity
    """`error`: the node must not be used. `warning`: worth knowing."""
    node: str
    """Empty if no single node is to blame."""
    check: str
    message: str
    fix: str
