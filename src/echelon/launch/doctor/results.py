"""Results of an examination, as plain values; `findings.py` derives the findings from them.

A broken node may send anything. Values of its answers that cannot be parsed stay unknown; the rest
is used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from echelon.core.codec import Figure, Read, decode
from echelon.core.frozen import frozen
from echelon.core.records import to_count


def _read_severity(value: Any) -> str | None:
    return value if value in ("error", "warning") else None


Severity = Annotated[Literal["error", "warning"], Read(_read_severity, "warning")]


@frozen
class Look:
    """The first look at a node, from a few lines of sh."""

    error: str = ""
    """Why there was no output, or why it stopped early."""
    hostname: str = ""
    folder: str = ""
    """`seen`, `missing`, or `stale`: the directory exists, but not the file just written to it."""
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


@frozen
class Gpu:
    """One GPU, as reported by its driver."""

    index: Annotated[int, Read(to_count, None)]
    name: str = ""
    uuid: str = ""
    memory_mib: int = 0
    ecc_errors: int = 0
    """Uncorrected errors since the driver was loaded."""
    throttle: Sequence[str] = ()
    """Reasons for reduced clocks, other than those of an idle GPU."""
    tflops: Figure = 0.0
    """Of a large matrix product in bf16; 0 if not measured."""
    memory_gbs: Figure = 0.0
    """Bytes read and written per second during a copy, in 1e9."""


@frozen
class Facts:
    """What a node's probe reports."""

    skew_s: Figure = 0.0
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
    folder_late_s: Figure = 0.0
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
    gpu_error: str = ""
    """Why the driver could not be queried."""


@frozen
class Torch:
    """What a node's torch reports."""

    error: str = ""
    """Why it cannot be imported."""
    import_s: Figure = 0.0
    version: str = ""
    cuda: str = ""
    """The CUDA version it was built for; empty for a CPU build."""
    nccl: str = ""
    devices: int = 0
    """Number of GPUs that it can use."""
    uuids: Sequence[str] = ()
    """The driver's UUIDs of these GPUs; empty texts if torch is older than 2.5."""
    device_error: str = ""
    """Why it cannot use any."""


@frozen
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


@frozen
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


@frozen
class RankAnswer:
    """A rank's part in a measurement; 0 for a figure that it did not measure."""

    error: str = ""
    bandwidth: Figure = 0.0
    latency_s: Figure = 0.0
    tflops: Figure = 0.0
    memory_gbs: Figure = 0.0
    name: str = ""
    """The GPU's name."""


@frozen
class Measured:
    """A node's answer to a measurement."""

    ranks: Sequence[RankAnswer] = ()
    error: str = ""
    """Why its ranks did not answer."""


@frozen
class Finding:
    """A problem."""

    severity: Severity
    """`error`: the node must not be used. `warning`: worth knowing."""
    node: str
    """Empty if no single node is to blame."""
    check: str
    message: str
    fix: str


@frozen
class Examined:
    """All results of an examination."""

    nodes: Sequence[Node]
    pairs: Sequence[Group] = ()
    overall: Group | None = None
    """Over all nodes that can participate."""
    seconds: float = 0.0
    findings: Sequence[Finding] = ()
    """Errors first."""


_COUNT = re.compile(r"[0-9]{1,18}")


def read_count(text: str, unknown: int) -> int:
    """Parse a count; return `unknown` if it is not a number of plausible size."""
    return int(text) if _COUNT.fullmatch(text) else unknown


def read_torch(found: Mapping[str, Any]) -> Torch:
    """Return a node's answer about torch; one without a version is an error."""
    known = decode(Torch, found)
    if known.version or known.error:
        return known
    return replace(known, error="the answer has no version")
