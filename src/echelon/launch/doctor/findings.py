"""Derive findings, each with its fix, from the results of an examination. Pure.

Nodes are compared with each other, not with a nominal configuration: what most nodes have counts as
correct. Figures are compared by their ratio to the median of the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from echelon.core.nodes import compress
from echelon.launch.doctor.all_reduce import SLOW, find_fastest, find_suspects
from echelon.launch.doctor.gpus import count_usable, own_gpus
from echelon.launch.doctor.ports import judge_ports, name_some
from echelon.launch.doctor.results import (
    Examined,
    Facts,
    Finding,
    Gpu,
    Group,
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
    found = [
        *(one for node in nodes for one in _judge_look(node, folder, python)),
        *(one for node in nodes for one in _judge_facts(node, folder)),
        *(one for node in nodes for one in _judge_gpus(node)),
        *(one for node in nodes for one in _judge_torch(node)),
        *_judge_odd(nodes),
        *judge_ports(nodes),
        *_judge_figures(examined),
    ]
    found = _share(found, [node.name for node in nodes])
    place = {node.name: number for number, node in enumerate(nodes)}
    return sorted(found, key=lambda one: (one.severity != "error", place.get(one.node, len(place))))


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
    told: dict[str, str] = {}
    for one in findings:
        told.setdefault(one.message, one.node)
    words = list(told) if len(told) == 1 else [f"{node}: {why}" for why, node in told.items()]
    more = f"; and {len(words) - 2} more" if len(words) > 2 else ""
    fixes = list(dict.fromkeys(one.fix for one in findings))
    message = f"on all nodes: {'; '.join(words[:2])}{more}"
    return replace(findings[0], node="", message=message, fix="; ".join(fixes[:2]))


def exclude_option(findings: Sequence[Finding], nodes: Sequence[str]) -> str:
    """Return the option that excludes bad nodes; empty if none or all of them are bad."""
    bad = {one.node for one in findings if one.severity == "error" and one.node}
    named = [node for node in nodes if node in bad]
    return f"--exclude={compress(named)}" if named and len(named) < len(nodes) else ""


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
        why = f"a file written to {folder} does not appear"
        yield _error(name, "folder", why, "the path is another directory there, or a stale mount")
    elif look.folder_late_s > LATE_S:
        why = f"a file written to {folder} appears {look.folder_late_s} s late"
        yield _warning(name, "folder", why, "shorten attribute caching: acdirmax, see nfs(5)")
    if look.python_error:
        why = f"{python} does not run: {look.python_error}"
        yield _error(name, "python", why, "put the environment on storage that all nodes share")
    elif look.python_version and _version(look.python_version) < OLDEST:
        why = f"{python} is Python {look.python_version}"
        yield _error(name, "python", why, "choose Python 3.11 or newer: --python")
    yield from _judge_limits(node)
    if abs(node.skew_s) >= SKEW_S:
        way = "ahead of" if node.skew_s > 0 else "behind"
        why = f"its clock is {abs(node.skew_s):.1f} s {way} ours"
        fix = "check on the node: chronyc tracking; munge rejects 300 s and more"
        yield _warning(name, "clock", why, fix)


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
    if facts.unresolved:
        why = f"names do not resolve, or resolve wrongly: {name_some(facts.unresolved)}"
        fix = "correct /etc/hosts or DNS; Echelon itself does not need names"
        yield _warning(name, "names", why, fix)
    if facts.unnamed:
        why = f"addresses without a name: {name_some(facts.unnamed)}"
        fix = "correct reverse DNS; torch waits for it on each connection"
        yield _warning(name, "names", why, fix)
    if facts.folder_late_s < 0:
        why = f"a new file in {folder} does not appear"
        yield _error(name, "folder", why, "the path is another directory there, or a stale mount")
    elif facts.folder_late_s > LATE_S:
        why = f"a new file in {folder} appears {facts.folder_late_s:.1f} s late"
        yield _warning(name, "folder", why, "shorten attribute caching: acdirmax, see nfs(5)")


def _judge_torch(node: Node) -> Iterator[Finding]:
    name, torch = node.name, node.torch
    if torch is None:
        return
    if torch.error:
        why = f"cannot import torch: {torch.error}"
        yield _error(name, "torch", why, "the node has a different or incomplete environment")
    elif torch.import_s > IMPORT_S:
        why = f"'import torch' takes {torch.import_s:.0f} s"
        yield _warning(name, "import", why, "put the environment on faster or local storage")


# --- each node compared with the others -------------------------------------------------------

_ODD: tuple[tuple[str, str, bool, str, Callable[[Node], str]], ...] = (
    (
        *("python", "Python", True, "use one environment on shared storage"),
        lambda node: (
            f"{node.look.python_version} in {node.look.python_prefix}"
            if node.look.python_version
            else ""
        ),
    ),
    (
        *("torch", "torch", True, "use one environment on shared storage"),
        lambda node: _of_torch(node, lambda torch: torch.version),
    ),
    (
        *("cuda", "torch's CUDA", True, "use one environment on shared storage"),
        lambda node: _of_torch(node, lambda torch: torch.cuda),
    ),
    (
        *("nccl", "NCCL", True, "use one environment on shared storage"),
        lambda node: _of_torch(node, lambda torch: torch.nccl),
    ),
    (
        *("driver", "the GPU driver", False, "install the same driver on all nodes"),
        lambda node: _of_facts(node, lambda facts: facts.driver),
    ),
    (
        *("gpus", "the GPU type", False, "request one type: --gpu-type, or --constraint"),
        lambda node: _of_facts(
            node, lambda facts: ", ".join(sorted({gpu.name for gpu in own_gpus(facts)}))
        ),
    ),
    (
        *("mtu", "the MTU", False, "check it: ip link; larger packets may be lost"),
        lambda node: _of_facts(node, lambda facts: str(facts.mtu) if facts.mtu else ""),
    ),
    (
        *("folder", "the file system of the shared directory", False, "check it: df"),
        lambda node: node.look.folder_type if node.look.folder == "seen" else "",
    ),
    (
        *("limits", "the limit of open files", False, "check it: ulimit -n"),
        lambda node: str(node.look.limits.get("files", "")),
    ),
)
"""What should be the same on all nodes: check, its name, whether a difference is an error, the fix,
and a function that returns the value, or '' if it is unknown."""


def _of_facts(node: Node, value: Callable[[Facts], str]) -> str:
    return value(node.facts) if node.facts else ""


def _of_torch(node: Node, value: Callable[[Torch], str]) -> str:
    return value(node.torch) if node.torch and not node.torch.error else ""


def _judge_odd(nodes: Sequence[Node]) -> Iterator[Finding]:
    for check, name, bad, fix, value in _ODD:
        values = {node.name: value(node) for node in nodes if value(node)}
        usual, odd = find_odd(values)
        make = _error if bad else _warning
        if odd and not usual:
            told = "; ".join(f"{node} {text}" for node, text in list(odd.items())[:4])
            yield make("", check, f"{name} differs: {told}", fix)
            continue
        for node, text in odd.items():
            yield make(node, check, f"{name} is {text}, on other nodes {usual}", fix)
    times = {node.name: node.torch.import_s for node in nodes if node.torch}
    for node, seconds in times.items():
        usual_s = median([other for name, other in times.items() if name != node] or [seconds])
        if IMPORT_S >= seconds > max(5.0, 3 * usual_s):
            why = f"'import torch' takes {seconds:.0f} s, on other nodes {usual_s:.0f} s"
            yield _warning(node, "import", why, "check the node for slow storage or a busy CPU")


def find_odd(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the majority's value, and the nodes that have another one.

    If no value has a majority, the value is '' and all nodes are returned.
    """
    if not values:
        return "", {}
    usual, count = Counter(values.values()).most_common(1)[0]
    if count == len(values):
        return usual, {}
    if 2 * count <= len(values):
        return "", dict(values)
    return usual, {node: value for node, value in values.items() if value != usual}


def _version(text: str) -> tuple[int, ...]:
    return tuple(read_count(part, 0) for part in text.split(".")[:2])


# --- GPUs; those of other jobs are ignored ----------------------------------------------------


def _judge_gpus(node: Node) -> Iterator[Finding]:
    if node.facts is not None:
        yield from _judge_number(node.name, node.facts)
        if not _is_without(node, node.facts):
            for gpu in own_gpus(node.facts):
                yield from _judge_health(node.name, gpu, sure=node.facts.ours is not None)
        yield from _judge_use(node, node.facts)


def _is_without(node: Node, facts: Facts) -> bool:
    """Tell whether the job was granted no GPU and uses none."""
    return facts.in_job and not facts.granted and not (node.torch and node.torch.devices)


def _judge_number(name: str, facts: Facts) -> Iterator[Finding]:
    if facts.gpu_error and facts.granted and not facts.gpus:
        missing = facts.gpu_error.startswith("there is no")
        why = f"{facts.granted} GPUs were granted, but {facts.gpu_error}"
        fix = "check on the node that the driver is loaded: nvidia-smi"
        yield _find("warning" if missing else "error", name, "gpus", why, fix)
    elif len(facts.gpus) < (1 if facts.parts else facts.granted):
        why = f"{facts.granted} GPUs were granted, but only {len(facts.gpus)} are present"
        yield _error(name, "gpus", why, "check the driver's errors: dmesg | grep -i xid")


def _judge_health(name: str, gpu: Gpu, *, sure: bool) -> Iterator[Finding]:
    """Return the findings about one GPU; only warnings if it may belong to another job."""
    doubt = "" if sure else "; it may belong to another job"
    if gpu.ecc_errors:
        why = f"GPU {gpu.index} has {gpu.ecc_errors} uncorrected ECC errors{doubt}"
        fix = "have it reset or replaced: nvidia-smi -q -d ECC"
        yield _find("error" if sure else "warning", name, "ecc", why, fix)
    if gpu.throttle:
        why = f"GPU {gpu.index} is throttled: {', '.join(gpu.throttle)}{doubt}"
        fix = "check cooling and power: nvidia-smi -q -d PERFORMANCE"
        yield _warning(name, "throttle", why, fix)


def _judge_use(node: Node, facts: Facts) -> Iterator[Finding]:
    torch, usable = node.torch, count_usable(facts)
    if torch is None or torch.error or not torch.cuda or not facts.gpus:
        return
    if torch.devices < usable:
        why = f"torch for CUDA {torch.cuda} can use {torch.devices} of {usable} GPUs"
        why += f" (driver {facts.driver})"
        why += f": {torch.device_error}" if torch.device_error else ""
        fix = "update the driver, or check CUDA_VISIBLE_DEVICES"
        yield _error(node.name, "cuda", why, fix)


# --- measurements, compared with the median of the others -------------------------------------

_GPU_ERROR, _GPU_WARNING = 0.5, 0.8
"""Fractions of the other GPUs' median below which there is an error or a warning."""


def _judge_figures(examined: Examined) -> Iterator[Finding]:
    yield from _judge_pairs(examined)
    overall = examined.overall
    if overall and overall.error:
        why = f"all-reduce over {len(overall.nodes)} nodes fails: {overall.error}"
        fix = "try fewer nodes to find the number at which it fails"
        yield _error("", "all-reduce", why, fix)
    yield from _judge_gpu_speed(examined)


def _judge_pairs(examined: Examined) -> Iterator[Finding]:
    named = set()
    for one in find_suspects(examined.pairs):
        named.add(one.node)
        if one.what == "broken":
            why = f"all-reduce fails with every partner: {_error_of(examined, one.node)}"
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
    if not named and len(examined.nodes) > 2 and best and min(best) * SLOW < max(best):
        why = f"some nodes reach {rate(max(best))}, some {rate(min(best))}; half of them or "
        why += "more are slow, so no single node can be blamed"
        fix = "check whether they are of different types or in different parts of the network"
        yield _warning("", "all-reduce", why, fix)
    for pair in examined.pairs:
        if pair.error and not named & set(pair.nodes):
            why = f"all-reduce between {' and '.join(pair.nodes)} fails: {pair.error}"
            fix = "examine them with a third node, to see whether one of them is to blame"
            yield _error("", "all-reduce", why, fix)


def _error_of(examined: Examined, node: str) -> str:
    return next(pair.error for pair in examined.pairs if node in pair.nodes and pair.error)


def _judge_gpu_speed(examined: Examined) -> Iterator[Finding]:
    known = [(node.name, gpu) for node in examined.nodes if node.facts for gpu in node.facts.gpus]
    for what, unit, figures in (
        ("a matrix product", "TFLOP/s", {(n, g.index, g.name): g.tflops for n, g in known}),
        ("copying", "GB/s", {(n, g.index, g.name): g.memory_gbs for n, g in known}),
    ):
        measured = {key: figure for key, figure in figures.items() if figure}
        for (node, index, kind), figure in measured.items():
            others = [
                other
                for key, other in measured.items()
                if key[2] == kind and key[:2] != (node, index)
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
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return (
        f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e7 else f"{bytes_per_s / 1e6:.1f} MB/s"
    )


def describe(group: Group) -> str:
    """Format the result of an all-reduce."""
    if group.error:
        return group.error
    return f"{rate(group.bandwidth)}, {group.latency_s * 1e3:.2f} ms"
