"""What follows from what was found out about nodes: findings, each with its fix. Pure.

Nodes are compared with each other, and not with what a cluster ought to be: what most of them have
is right, and whoever differs is odd. Figures are compared by their ratio to the others' median.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from echelon.core.nodes import compress
from echelon.launch.doctor.judge_figures import judge_figures
from echelon.launch.doctor.record import Examined, Facts, Finding, Node, Torch

SKEW_S = 1.0
LATE_S = 2.0
FILES = 1024
PROCESSES = 1024
SHM_MIB = 1024
IMPORT_S = 60.0
OLDEST = (3, 11)
"""The Python that our own processes need."""


def judge(examined: Examined, *, folder: str, python: str) -> list[Finding]:
    """Return everything that is not as it should be, the worst first.

    Args:
        examined: what was found out.
        folder: the shared folder that nodes were asked for,
        python: and the Python.
    """
    nodes = examined.nodes
    found = [
        *(one for node in nodes for one in _judge_look(node, folder, python)),
        *(one for node in nodes for one in _judge_facts(node, folder)),
        *(one for node in nodes for one in _judge_gpus(node)),
        *(one for node in nodes for one in _judge_torch(node)),
        *_judge_odd(nodes),
        *_judge_ports(nodes),
        *judge_figures(examined),
    ]
    found = _share(found, [node.name for node in nodes])
    place = {node.name: number for number, node in enumerate(nodes)}
    return sorted(found, key=lambda one: (one.severity != "error", place.get(one.node, len(place))))


def _share(findings: Sequence[Finding], nodes: Sequence[str]) -> list[Finding]:
    """Make one of what is the same on all nodes: then none of them is to blame.

    So it is with torch on a single one, too: the program may not want it.
    """
    same = Counter(replace(one, node="") for one in findings if one.node)
    shared = {one for one, count in same.items() if count == len(nodes)}
    if len(nodes) == 1:
        shared = {one for one in shared if one.check == "torch"}
    everywhere = [replace(one, message=f"on all nodes: {one.message}") for one in shared]
    return [one for one in findings if replace(one, node="") not in shared] + everywhere


def exclude_option(findings: Sequence[Finding], nodes: Sequence[str]) -> str:
    """Return the option that leaves bad nodes out; empty where none is bad, or all are."""
    bad = {one.node for one in findings if one.severity == "error" and one.node}
    named = [node for node in nodes if node in bad]
    return f"--exclude={compress(named)}" if named and len(named) < len(nodes) else ""


def _error(node: str, check: str, message: str, fix: str) -> Finding:
    return Finding(severity="error", node=node, check=check, message=message, fix=fix)


def _warning(node: str, check: str, message: str, fix: str) -> Finding:
    return Finding(severity="warning", node=node, check=check, message=message, fix=fix)


# --- one node for itself ----------------------------------------------------------------------


def _judge_look(node: Node, folder: str, python: str) -> Iterator[Finding]:
    name, look = node.name, node.look
    if look.error:
        why = f"it does not answer: {look.error}"
        yield _error(
            name, "reach", why, f"leave it out, and tell those who run it: sinfo -Rn {name}"
        )
        if not look.hostname:
            return
    if look.folder == "missing":
        why = f"it does not see the folder {folder}"
        yield _error(name, "folder", why, "is the file system mounted there? df says")
    elif look.folder == "stale":
        why = f"what was written to {folder} is not there"
        yield _error(name, "folder", why, "it sees another folder under this name, or an old state")
    elif look.folder_late_s > LATE_S:
        why = f"what was written to {folder} came {look.folder_late_s} s late"
        yield _warning(
            name, "folder", why, "attributes are cached for long: see acdirmax of nfs(5)"
        )
    if look.python_error:
        why = f"{python} does not run: {look.python_error}"
        yield _error(name, "python", why, "put the environment where every node has it")
    elif look.python_version and _version(look.python_version) < OLDEST:
        why = f"{python} is Python {look.python_version}"
        yield _error(name, "python", why, "name one of 3.11 or newer: --python")
    yield from _judge_limits(node)
    if abs(node.skew_s) >= SKEW_S:
        way = "ahead of" if node.skew_s > 0 else "behind"
        why = f"its clock is {abs(node.skew_s):.1f} s {way} ours"
        yield _warning(name, "clock", why, "chronyc tracking there; munge refuses at 300 s")


def _judge_limits(node: Node) -> Iterator[Finding]:
    name, limits = node.name, node.look.limits
    if 0 <= limits.get("files", -1) < FILES:
        why = f"a process may open only {limits['files']} files"
        yield _warning(name, "limits", why, "raise it: ulimit -n, and PropagateResourceLimits")
    if 0 <= limits.get("processes", -1) < PROCESSES:
        why = f"a user may have only {limits['processes']} processes"
        yield _warning(name, "limits", why, "raise it: ulimit -u; loaders and torch start many")
    if node.facts and node.facts.rdma and limits.get("locked_kib", -1) >= 0:
        why = f"only {limits['locked_kib']} KiB may be locked, and there is an RDMA network"
        yield _warning(name, "limits", why, "ulimit -l unlimited: else NCCL cannot use it")
    if 0 <= node.look.shm_mib < SHM_MIB:
        why = f"there are only {node.look.shm_mib} MiB of shared memory (/dev/shm)"
        yield _warning(name, "shm", why, "loaders and NCCL need it: mount -o remount,size=8G")


def _judge_facts(node: Node, folder: str) -> Iterator[Finding]:
    name, facts = node.name, node.facts
    if node.lost and not node.look.error:
        fix = "if nodes cannot reach this host, ask from inside: sbatch --wrap 'echelon doctor'"
        yield _error(name, "reach", f"its probe is not there: {node.lost}", fix)
    if facts is None:
        return
    if facts.unresolved:
        why = f"names lead nowhere, or astray: {_some(facts.unresolved)}"
        yield _warning(name, "names", why, "mend /etc/hosts or DNS; Echelon itself needs no names")
    if facts.unnamed:
        why = f"addresses have no name: {_some(facts.unnamed)}"
        yield _warning(
            name, "names", why, "mend reverse DNS: torch waits for it at each connection"
        )
    if facts.folder_late_s < 0:
        why = f"a file that we wrote to {folder} did not come"
        yield _error(name, "folder", why, "it sees another folder under this name, or an old state")
    elif facts.folder_late_s > LATE_S:
        why = f"a file that we wrote to {folder} came {facts.folder_late_s:.1f} s late"
        yield _warning(
            name, "folder", why, "attributes are cached for long: see acdirmax of nfs(5)"
        )


def _judge_gpus(node: Node) -> Iterator[Finding]:
    name, facts = node.name, node.facts
    if facts is None:
        return
    if facts.gpu_error and facts.granted and not facts.gpus:
        missing = facts.gpu_error.startswith("there is no")
        why = f"{facts.granted} GPUs were granted, and {facts.gpu_error}"
        make = _warning if missing else _error
        yield make(name, "gpus", why, "is the driver loaded? nvidia-smi there says")
    elif len(facts.gpus) < facts.granted:
        why = f"{facts.granted} GPUs were granted, and {len(facts.gpus)} are there"
        yield _error(name, "gpus", why, "one has fallen off the bus: dmesg | grep -i xid")
    for gpu in facts.gpus:
        if gpu.ecc_errors:
            why = f"GPU {gpu.index} has had {gpu.ecc_errors} uncorrected ECC errors"
            yield _error(name, "ecc", why, "have it reset or changed: nvidia-smi -q -d ECC")
        if gpu.throttle:
            why = f"GPU {gpu.index} is held down: {', '.join(gpu.throttle)}"
            yield _warning(
                name, "throttle", why, "look at cooling and power: nvidia-smi -q -d PERFORMANCE"
            )
    torch = node.torch
    wanted = facts.granted or len(facts.gpus)
    if torch and not torch.error and torch.cuda and facts.gpus and torch.devices < wanted:
        why = f"torch for CUDA {torch.cuda} can use {torch.devices} of {wanted} GPUs"
        why += f" (driver {facts.driver})"
        why += f": {torch.device_error}" if torch.device_error else ""
        yield _error(
            name,
            "cuda",
            why,
            "the driver may be too old for this torch, or CUDA_VISIBLE_DEVICES wrong",
        )


def _judge_torch(node: Node) -> Iterator[Finding]:
    name, torch = node.name, node.torch
    if torch is None:
        return
    if torch.error:
        why = f"cannot import torch: {torch.error}"
        yield _error(name, "torch", why, "the environment differs there, or is not whole")
    elif torch.import_s > IMPORT_S:
        why = f"'import torch' takes {torch.import_s:.0f} s"
        yield _warning(name, "import", why, "put the environment on faster or local storage")


# --- one node beside the others ---------------------------------------------------------------

_ODD: tuple[tuple[str, str, bool, str, Callable[[Node], str]], ...] = (
    (
        *("python", "Python", True, "use one environment, seen by all nodes"),
        lambda node: (
            f"{node.look.python_version} in {node.look.python_prefix}"
            if node.look.python_version
            else ""
        ),
    ),
    (
        *("torch", "torch", True, "use one environment, seen by all nodes"),
        lambda node: _of_torch(node, lambda torch: torch.version),
    ),
    (
        *("cuda", "torch's CUDA", True, "use one environment, seen by all nodes"),
        lambda node: _of_torch(node, lambda torch: torch.cuda),
    ),
    (
        *("nccl", "NCCL", True, "use one environment, seen by all nodes"),
        lambda node: _of_torch(node, lambda torch: torch.nccl),
    ),
    (
        *("driver", "the GPU driver", False, "have the same one installed"),
        lambda node: _of_facts(node, lambda facts: facts.driver),
    ),
    (
        *("gpus", "the kind of GPU", False, "ask for one kind: --gpu-type, or --constraint"),
        lambda node: _of_facts(node, lambda facts: ", ".join(sorted({g.name for g in facts.gpus}))),
    ),
    (
        *("mtu", "the MTU", False, "ip link there: packets of other sizes may be lost"),
        lambda node: _of_facts(node, lambda facts: str(facts.mtu) if facts.mtu else ""),
    ),
    (
        *("folder", "the file system of the shared folder", False, "df there"),
        lambda node: node.look.folder_type if node.look.folder == "seen" else "",
    ),
    (
        *("limits", "the limit of open files", False, "ulimit -n there"),
        lambda node: str(node.look.limits.get("files", "")),
    ),
)
"""What should be the same everywhere: check, its name, whether it is an error, the fix, the value;
empty where it is not known."""


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
            yield make(node, check, f"{name} is {text}, elsewhere {usual}", fix)
    times = {node.name: node.torch.import_s for node in nodes if node.torch}
    for node, seconds in times.items():
        usual_s = median([other for name, other in times.items() if name != node] or [seconds])
        if IMPORT_S >= seconds > max(5.0, 3 * usual_s):
            why = f"'import torch' takes {seconds:.0f} s, elsewhere {usual_s:.0f} s"
            yield _warning(node, "import", why, "its storage is slow, or its CPU is busy")


def find_odd(values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return what most nodes have, and those that have something else.

    Where no value has a majority, nobody is right: then all of them are returned.
    """
    if not values:
        return "", {}
    usual, count = Counter(values.values()).most_common(1)[0]
    if count == len(values):
        return usual, {}
    if 2 * count <= len(values):
        return "", dict(values)
    return usual, {node: value for node, value in values.items() if value != usual}


def _judge_ports(nodes: Sequence[Node]) -> Iterator[Finding]:
    tried, failed = Counter[str](), Counter[str]()
    for node in nodes:
        tried.update(node.tried)
        failed.update(node.unreached)
    closed = {name for name in failed if failed[name] == tried[name] and tried[name] > 1}
    for name in closed:
        why = "no other node reaches its ports"
        yield _error(name, "ports", why, "a firewall there, or a cable: iptables -L, ip -s link")
    for node in nodes:
        others = [name for name in node.unreached if name not in closed]
        if others and len(others) == len(node.tried) > 1 and node.name not in closed:
            why = "it reaches the ports of no other node"
            yield _error(node.name, "ports", why, "a firewall there, or a cable")
        elif others and node.name not in closed:
            why = f"{node.name} does not reach ports of {_some(others)}"
            yield _error("", "ports", why, "a firewall, or a route, between them")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
