"""What is found out about nodes: plain values, from which judge.py draws its conclusions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The first look at a node: what a few lines of sh say of it."""

    error: str = ""
    """Why it said nothing, or stopped in the middle."""
    hostname: str = ""
    skew_low_s: float = 0.0
    """By how much its clock is ahead of ours at least,"""
    skew_high_s: float = 0.0
    """and at most: between our question and its answer, its time was read once."""
    folder: str = ""
    """`seen`; `missing`; `stale` where the folder is there, and what we have just put there not."""
    folder_late_s: int = 0
    """For how long it had to look, in whole seconds."""
    folder_type: str = ""
    """The file system's, as the kernel calls it."""
    python: str = ""
    """The real file behind the Python that was named."""
    python_version: str = ""
    python_prefix: str = ""
    """Where its packages are."""
    python_error: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    """`files`, `locked_kib`, `processes`; -1 is unlimited."""
    shm_mib: int = -1
    """How large /dev/shm is; -1 where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as its driver sees it."""

    index: int
    name: str = ""
    uuid: str = ""
    memory_mib: int = 0
    ecc_errors: int = 0
    """Uncorrected since the driver was loaded."""
    throttle: Sequence[str] = ()
    """Why its clocks are held down, where that is not what an idle GPU does."""
    tflops: float = 0.0
    """Of a large matrix product in bf16; 0 where it was not measured."""
    memory_gbs: float = 0.0
    """Bytes read and written per second while it copies, in 1e9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node's own process says of it."""

    skew_s: float = 0.0
    """By how much its clock is ahead of ours: asked several times, the quickest answer counts."""
    interface: str = ""
    """The one by which it reaches us,"""
    mtu: int = 0
    addresses: Sequence[str] = ()
    unresolved: Sequence[str] = ()
    """Names of nodes that lead nowhere from here, or elsewhere: `node3`, `node3 (127.0.1.1)`."""
    unnamed: Sequence[str] = ()
    """Addresses of nodes without a name."""
    folder_late_s: float = 0.0
    """How long after we wrote a file it was there; negative when it never came."""
    rdma: bool = False
    """Whether there is an InfiniBand or RoCE device: those need locked memory."""
    in_job: bool = False
    """Whether Slurm gives GPUs out here: then what it has not granted is not ours."""
    granted: int = 0
    """GPUs, or parts of GPUs, that CUDA_VISIBLE_DEVICES says are ours."""
    parts: bool = False
    """Whether they are parts (MIG)."""
    driver: str = ""
    gpus: Sequence[Gpu] = ()
    """All that the driver shows: some may be other jobs'."""
    ours: Sequence[int] | None = None
    """The indices of those that are ours, as torch counts them; None where nobody can tell."""
    gpu_error: str = ""
    """Why the driver could not be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What a node's torch says."""

    error: str = ""
    """Why it cannot be imported."""
    import_s: float = 0.0
    version: str = ""
    cuda: str = ""
    """What it was built for; empty without."""
    nccl: str = ""
    devices: int = 0
    """GPUs that it can use."""
    device_error: str = ""
    """Why it can use none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """All that is known of a node."""

    name: str
    look: Look = field(default_factory=Look)
    lost: str = ""
    """Why its process did not come, or has gone."""
    facts: Facts | None = None
    torch: Torch | None = None
    unreached: Sequence[str] = ()
    """Nodes whose ports are not open to it."""
    tried: Sequence[str] = ()
    """Nodes whose ports it has tried."""

    @property
    def skew_s(self) -> float:
        """By how much its clock is ahead of ours, as far as that is sure."""
        low_s, high_s = self.look.skew_low_s, self.look.skew_high_s
        if not low_s <= 0 <= high_s:
            return min(low_s, high_s, key=abs)
        return self.facts.skew_s if self.facts else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An all-reduce over some nodes."""

    nodes: tuple[str, ...]
    ranks: int = 0
    backend: str = ""
    bandwidth: float = 0.0
    """Bytes per second on each rank's link ("bus bandwidth": comparable between sizes)."""
    latency_s: float = 0.0
    """The quickest all-reduce of one number."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Everything that was found out."""

    nodes: Sequence[Node]
    pairs: Sequence[Group] = ()
    overall: Group | None = None
    """Over all nodes that can take part."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be."""

    severity: Severity
    """`error`: the node is not to be used. `warning`: somebody should know."""
    node: str
    """Empty where no single node is to blame."""
    check: str
    message: str
    fix: str
