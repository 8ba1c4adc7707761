"""Derive findings, each with its fix, from the results of an examination. Pure.

Nodes are compared with each other, not with a nominal configuration: what most nodes have counts as
correct. Figures are compared by their ratio to the median of the others.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

from echelon.core.units import format_bytes, list_names
from echelon.launch.doctor.all_reduce import SLOW, find_fastest, find_suspects
from echelon.launch.doctor.gpus import count_usable, own_gpus
from echelon.launch.doctor.results import (
    Examined,
    Facts,
    Finding,
    Node,
    Severity,
    Torch,
    read_count,
)

SKEW_S = 1.0
LATE_S = 2.0
FILES = 1024
PROCESSES = 1024
SHM_MIB = 1024
IMPORT_S = 60.0
OLDEST = (3, 11)
"""Oldest Python version that our own processes support."""
_OWN = frozenset({"ecc", "throttle", "gpu speed", "all-reduce"})
"""Checks of a node's own hardware: two nodes with broken GPUs are two broken nodes."""


def judge(examined: Examined, *, folder: str, python: str) -> list[Finding]:
    """Return all findings, errors first.

    Args:
        examined: results of the examination.
        folder: the shared directory that nodes were checked for.
        python: the Python that nodes were checked for.
    """
    nodes = examined.nodes
    findings: list[Finding] = []
    for node in nodes:
        findings += _judge_look(node, folder, python)
        findings += _judge_facts(node, folder)
        findings += _judge_gpus(node)
        findings += _judge_torch(node)
    findings += _judge_differences(nodes)
    findings += _judge_imports(nodes)
    findings += judge_ports(nodes)
    findings += _judge_all_reduce(examined)
    findings += _judge_gpu_speed(nodes)
    findings = _share(findings, [node.name for node in nodes])
    place = {node.name: number for number, node in enumerate(nodes)}
    return sorted(
        findings, key=lambda one: (one.severity != "error", place.get(one.node, len(place)))
    )


def _share(findings: Sequence[Finding], nodes: Sequence[str]) -> list[Finding]:
    """Merge a finding that all nodes have into one without a node: then no node is to blame.

    Findings are matched by check, because messages contain names of nodes and steps. Findings about
    a node's own devices are never merged. A torch finding is merged even with a single node: the
    program may not need torch.
    """
    alike: dict[tuple[str, Severity], list[Finding]] = {}
    for one in findings:
        if one.node and one.check not in _OWN and (len(nodes) > 1 or one.check == "torch"):
            alike.setdefault((one.check, one.severity), []).append(one)
    shared = {key: own for key, own in alike.items() if {one.node for one in own} == set(nodes)}
    named = [one for one in findings if not one.node or (one.check, one.severity) not in shared]
    return named + [_merge(own) for own in shared.values()]


def _merge(findings: Sequence[Finding]) -> Finding:
    """Return one finding for several nodes, without a node name."""
    nodes: dict[str, str] = {}
    for one in findings:
        nodes.setdefault(one.message, one.node)
    texts = list(nodes) if len(nodes) == 1 else [f"{node}: {why}" for why, node in nodes.items()]
    more = f"; and {len(texts) - 2} more" if len(texts) > 2 else ""
    fixes = list(dict.fromkeys(one.fix for one in findings))
    message = f"on all nodes: {'; '.join(texts[:2])}{more}"
    return replace(findings[0], node="", message=message, fix="; ".join(fixes[:2]))


def _find(severity: Severity, node: str, check: str, message: str, fix: str) -> Finding:
    return Finding(severity=severity, node=node, check=check, message=message, fix=fix)


_error, _warning = partial(_find, "error"), partial(_find, "warning")


# --- each node on its own ---------------------------------------------------------------------


def _judge_look(node: Node, folder: str, python: str) -> Iterator[Finding]:
    name, look = node.name, node.look
    if look.error:
        why = f"does not respond: {look.error}"
        yield _error(name, "reach", why, "exclude it and tell the cluster's support: sinfo -R")
        if not look.hostname:
            return
    if look.folder == "missing":
        why = f"the directory {folder} does not exist there"
        yield _error(name, "folder", why, "check on the node that the file system is mounted: df")
    elif look.folder == "stale":
        yield _never_appears(name, f"a file written to {folder}")
    if look.python_error:
        why = f"{python} does not run: {look.python_error}"
        yield _error(name, "python", why, "put the environment on storage that all nodes share")
    elif look.python_version and _version(look.python_version) < OLDEST:
        why = f"{python} is Python {look.python_version}"
        yield _error(name, "python", why, "choose Python 3.11 or newer: --python")
    yield from _judge_limits(node)


def _judge_limits(node: Node) -> Iterator[Finding]:
    name, limits = node.name, node.look.limits
    if 0 <= limits.get("files", -1) < FILES:
        why = f"the limit of open files is {limits['files']}"
        fix = "raise it: ulimit -n, or PropagateResourceLimits in slurm.conf"
        yield _warning(name, "limits", why, fix)
    if 0 <= limits.get("processes", -1) < PROCESSES:
        why = f"the limit of processes per user is {limits['processes']}"
        yield _warning(name, "limits", why, "raise it: ulimit -u; data loaders start many")
    if node.facts and node.facts.rdma and limits.get("locked_kib", -1) >= 0:
        why = f"locked memory is limited to {limits['locked_kib']} KiB, too little for RDMA"
        fix = "raise it, or NCCL cannot use the RDMA network: ulimit -l unlimited"
        yield _warning(name, "limits", why, fix)
    if 0 <= node.look.shm_mib < SHM_MIB:
        why = f"only {node.look.shm_mib} MiB of shared memory (/dev/shm)"
        fix = "data loaders and NCCL need more: mount -o remount,size=8G /dev/shm"
        yield _warning(name, "shm", why, fix)


def _judge_facts(node: Node, folder: str) -> Iterator[Finding]:
    name, facts = node.name, node.facts
    if node.lost and not node.look.error:
        fix = "if nodes cannot reach this host, run it in a job: sbatch --wrap 'echelon doctor'"
        yield _error(name, "reach", f"its probe did not connect, or ended: {node.lost}", fix)
    if facts is None:
        return
    if abs(facts.skew_s) >= SKEW_S:
        way = "ahead of" if facts.skew_s > 0 else "behind"
        why = f"its clock is {abs(facts.skew_s):.1f} s {way} ours"
        fix = "check on the node: chronyc tracking; munge rejects 300 s and more"
        yield _warning(name, "clock", why, fix)
    if facts.folder_late_s < 0:
        yield _never_appears(name, f"a new file in {folder}")
    elif facts.folder_late_s > LATE_S:
        why = f"a new file in {folder} appears {facts.folder_late_s:.1f} s late"
        yield _warning(name, "folder", why, "shorten attribute caching: acdirmax, see nfs(5)")
    if facts.unresolved:
        why = f"names do not resolve, or resolve wrongly: {list_names(facts.unresolved, 4)}"
        fix = "correct /etc/hosts or DNS; Echelon itself does not need names"
        yield _warning(name, "names", why, fix)
    if facts.unnamed:
        why = f"addresses without a name: {list_names(facts.unnamed, 4)}"
        fix = "correct reverse DNS; torch waits for it on each connection"
        yield _warning(name, "names", why, fix)


def _never_appears(name: str, file: str) -> Finding:
    fix = "the path is another directory there, or a stale mount"
    return _error(name, "folder", f"{file} does not appear", fix)


def _judge_gpus(node: Node) -> Iterator[Finding]:
    """Judge a node's GPUs; problems of those that may belong to other jobs are only warnings."""
    name, facts, torch = node.name, node.facts or Facts(), node.torch or Torch()
    if facts.gpu_error and facts.granted and not facts.gpus:
        severity: Severity = "warning" if facts.gpu_error.startswith("there is no") else "error"
        why = f"{facts.granted} GPUs were granted, but {facts.gpu_error}"
        fix = "check on the node that the driver is loaded: nvidia-smi"
        yield _find(severity, name, "gpus", why, fix)
    elif len(facts.gpus) < (1 if facts.parts else facts.granted):
        why = f"{facts.granted} GPUs were granted, but only {len(facts.gpus)} are present"
        yield _error(name, "gpus", why, "check the driver's errors: dmesg | grep -i xid")
    gpus, certain = own_gpus(node)
    severity, doubt = "error", ""
    if not certain:
        severity, doubt = "warning", "; it may belong to another job"
    for gpu in gpus:
        if gpu.ecc_errors:
            why = f"GPU {gpu.index} has {gpu.ecc_errors} uncorrected ECC errors{doubt}"
            fix = "have it reset or replaced: nvidia-smi -q -d ECC"
            yield _find(severity, name, "ecc", why, fix)
        if gpu.throttle:
            why = f"GPU {gpu.index} is throttled: {', '.join(gpu.throttle)}{doubt}"
            fix = "check cooling and power: nvidia-smi -q -d PERFORMANCE"
            yield _warning(name, "throttle", why, fix)
    usable = count_usable(facts)
    if torch.cuda and facts.gpus and torch.devices < usable:
        why = f"torch for CUDA {torch.cuda} can use {torch.devices} of {usable} GPUs"
        why += f" (driver {facts.driver})"
        why += f": {torch.device_error}" if torch.device_error else ""
        yield _error(name, "cuda", why, "update the driver, or check CUDA_VISIBLE_DEVICES")


def _judge_torch(node: Node) -> Iterator[Finding]:
    name, torch = node.name, node.torch or Torch()
    if torch.error:
        why = f"cannot import torch: {torch.error}"
        yield _error(name, "torch", why, "the node has a different or incomplete environment")
    elif torch.import_s > IMPORT_S:
        why = f"'import torch' takes {torch.import_s:.0f} s"
        yield _warning(name, "import", why, "put the environment on faster or local storage")


def _version(text: str) -> tuple[int, ...]:
    return tuple(read_count(part, 0) for part in text.split(".")[:2])


# --- each node compared with the others -------------------------------------------------------


class _Property(NamedTuple):
    """A value that should be the same on all nodes."""

    name: str
    value: str
    """Empty if it is unknown."""
    check: str
    severity: Severity
    """Of a difference."""
    fix: str


def _list_properties(node: Node) -> list[_Property]:
    look, facts, torch = node.look, node.facts or Facts(), node.torch or Torch()
    python = f"{look.python_version} in {look.python_prefix}" if look.python_version else ""
    folder_type = look.folder_type if look.folder == "seen" else ""
    gpu_types = ", ".join(sorted({gpu.name for gpu in own_gpus(node)[0]}))
    shared = "the file system of the shared directory"
    files = str(look.limits.get("files", ""))
    one = "use one environment on shared storage"
    driver = "install the same driver on all nodes"
    kind = "request one type: --gpu-type, or --constraint"
    packets = "check it: ip link; larger packets may be lost"
    return [
        _Property("Python", python, "python", "error", one),
        _Property("torch", torch.version, "torch", "error", one),
        _Property("torch's CUDA", torch.cuda, "cuda", "error", one),
        _Property("NCCL", torch.nccl, "nccl", "error", one),
        _Property("the GPU driver", facts.driver, "driver", "warning", driver),
        _Property("the GPU type", gpu_types, "gpus", "warning", kind),
        _Property("the MTU", str(facts.mtu or ""), "mtu", "warning", packets),
        _Property(shared, folder_type, "folder", "warning", "check it: df"),
        _Property("the limit of open files", files, "limits", "warning", "check it: ulimit -n"),
    ]


def _judge_differences(nodes: Sequence[Node]) -> Iterator[Finding]:
    for properties in zip(*map(_list_properties, nodes), strict=True):
        name, _, check, severity, fix = properties[0]
        pairs = zip(nodes, properties, strict=True)
        usual, odd = find_odd({node.name: one.value for node, one in pairs if one.value})
        if odd and not usual:
            some = "; ".join(f"{node} {value}" for node, value in list(odd.items())[:4])
            yield _find(severity, "", check, f"{name} differs: {some}", fix)
            continue
        for node, value in odd.items():
            yield _find(severity, node, check, f"{name} is {value}, on other nodes {usual}", fix)


def find_odd(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the majority's value, and the nodes that have another one.

    If no value has a majority, the value is '' and all nodes are returned.
    """
    if not values:
        return "", {}
    usual, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return "", dict(values)
    return usual, {node: value for node, value in values.items() if value != usual}


def _judge_imports(nodes: Sequence[Node]) -> Iterator[Finding]:
    times_s = {node.name: node.torch.import_s for node in nodes if node.torch}
    for node, import_s in times_s.items():
        usual_s = median([other for name, other in times_s.items() if name != node] or [import_s])
        if IMPORT_S >= import_s > max(5.0, 3 * usual_s):
            why = f"'import torch' takes {import_s:.0f} s, on other nodes {usual_s:.0f} s"
            yield _warning(node, "import", why, "check the node for slow storage or a busy CPU")


def judge_ports(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Return findings: nodes with closed ports, nodes that reach no other, and single pairs."""
    tried = Counter(name for node in nodes for name in node.tried)
    failed = Counter(name for node in nodes for name in node.unreached)
    closed = {name for name in failed if failed[name] == tried[name] and tried[name] > 1}
    cable = "check the node's firewall and cable: iptables -L, ip -s link"
    for name in sorted(closed):
        yield _error(name, "ports", "no other node reaches its ports", cable)
    for node in nodes:
        if node.name in closed:
            continue
        open_to = [name for name in node.tried if name not in closed]
        missed = [name for name in node.unreached if name not in closed]
        if len(missed) == len(open_to) > 1:
            why = "cannot reach the ports of any other node"
            yield _error(node.name, "ports", why, cable)
        elif missed:
            why = f"{node.name} cannot reach ports of {list_names(missed, 4)}"
            yield _error("", "ports", why, "check the firewall and routes between them")


# --- measurements, compared with the median of the others -------------------------------------

_GPU_ERROR, _GPU_WARNING = 0.5, 0.8
"""Fractions of the other GPUs' median below which there is an error or a warning."""


def _judge_all_reduce(examined: Examined) -> Iterator[Finding]:
    errors = {node: pair.error for pair in examined.pairs if pair.error for node in pair.nodes}
    suspects = find_suspects(examined.pairs)
    for one in suspects:
        if one.what == "broken":
            why = f"all-reduce fails with every partner: {errors[one.node]}"
        elif one.what == "slow":
            why = f"all-reduce reaches {rate(one.best)}, on other nodes {rate(one.usual)}"
        else:
            why = f"all-reduce of one number takes {one.best * 1e3:.1f} ms, "
            why += f"on other nodes {one.usual * 1e3:.1f} ms"
        fix = "exclude it; check cable, switch port and link speed: ethtool, ibstat"
        make = _warning if one.what == "lagging" else _error
        yield make(one.node, "all-reduce", why, fix)
    # Use each node's best result: a pair may be slow for a moment on a busy machine.
    best = [known for known in find_fastest(examined.pairs).values() if known]
    if not suspects and len(examined.nodes) > 2 and best and min(best) * SLOW < max(best):
        why = f"some nodes reach {rate(max(best))}, some {rate(min(best))}; half of them or "
        why += "more are slow, so no single node can be blamed"
        fix = "check whether they are of different types or in different parts of the network"
        yield _warning("", "all-reduce", why, fix)
    named = {one.node for one in suspects}
    for pair in examined.pairs:
        if pair.error and not named & set(pair.nodes):
            why = f"all-reduce between {' and '.join(pair.nodes)} fails: {pair.error}"
            fix = "examine them with a third node, to see whether one of them is to blame"
            yield _error("", "all-reduce", why, fix)
    overall = examined.overall
    if overall and overall.error:
        why = f"all-reduce over {len(overall.nodes)} nodes fails: {overall.error}"
        fix = "try fewer nodes to find the number at which it fails"
        yield _error("", "all-reduce", why, fix)


def _judge_gpu_speed(nodes: Sequence[Node]) -> Iterator[Finding]:
    known = [(node.name, gpu) for node in nodes if node.facts for gpu in node.facts.gpus]
    for what, unit, figures in (
        ("a matrix product", "TFLOP/s", [gpu.tflops for _, gpu in known]),
        ("copying", "GB/s", [gpu.memory_gbs for _, gpu in known]),
    ):
        measured = [
            (node, gpu.index, gpu.name, figure)
            for (node, gpu), figure in zip(known, figures, strict=True)
            if figure
        ]
        for node, index, name, figure in measured:
            others = [
                other for *gpu, kind, other in measured if kind == name and gpu != [node, index]
            ]
            usual = median(others or [figure])
            if figure >= usual * _GPU_WARNING:
                continue
            why = f"GPU {index}: {what} {figure:.0f} {unit}, on others {usual:.0f}"
            fix = "check whether it is hot, shared or capped: nvidia-smi -q -d PERFORMANCE,POWER"
            make = _error if figure < usual * _GPU_ERROR else _warning
            yield make(node, "gpu speed", why, fix)


def rate(bytes_per_s: float) -> str:
    """Format a bandwidth: `1.3 GB/s`, `24 MB/s`."""
    return f"{format_bytes(bytes_per_s)}/s"
