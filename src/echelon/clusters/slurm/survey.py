"""Partitions, nodes and accounts of a cluster, from Slurm's own commands.

Only used for suggestions, so time-outs are short, and a missing answer (no accounting, or a slow
slurmctld) is not an error.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from echelon.core.frozen import frozen
from echelon.core.shell import Result, Shell
from echelon.core.slurm import check_configuration, scrub
from echelon.errors import EchelonError, UnavailableError

_PATIENCE_S = 15
_GLANCE_S = 2
"""Time-out for shell completion."""
_SINFO = ("sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%L|%D|%c|%G")
_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show", "user")
_FIELDS = "format=defaultaccount,cluster,account,partition,qos,defaultqos"
_GRES_GPU = re.compile(r"gpu(?::(?P<type>[^:,()]+))?:(?P<count>\d+)", re.ASCII)
_NAME = re.compile(r"[\w.@+-]+")
"""Names that need no quoting or escaping."""


@frozen
class NodeKind:
    """Nodes of a partition with the same resources."""

    count: int
    cpus: int
    """Per node, as Slurm counts them."""
    gpus: int = 0
    gpu_type: str = ""


@frozen
class Partition:
    """A partition that accepts jobs."""

    name: str
    default: bool = False
    limit: str = "infinite"
    """MaxTime."""
    usual: str = "n/a"
    """DefaultTime; if n/a, the limit applies."""
    kinds: tuple[NodeKind, ...] = ()

    @property
    def gpu_kind(self) -> NodeKind | None:
        """The most frequent type of node with GPUs; if tied, the one with more GPUs."""
        with_gpus = [kind for kind in self.kinds if kind.gpus]
        return max(with_gpus, key=lambda kind: (kind.count, kind.gpus), default=None)


@frozen
class Membership:
    """A user's accounts and QOS."""

    account: str = ""
    """The default account."""
    accounts: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()


@frozen
class Survey:
    """What a request needs to know about a cluster."""

    name: str = ""
    partitions: tuple[Partition, ...] = ()
    """Partitions that are up."""
    membership: Membership = Membership()


def survey_cluster(shell: Shell, environ: Mapping[str, str], user: str) -> Survey:
    """Query Slurm for partitions and accounts.

    Raises:
        EchelonError: Slurm is not installed or does not respond.
    """
    clean = scrub(environ)
    check_configuration(clean)

    def ask(*argv: str) -> Result:
        return shell.run(argv, env=clean, timeout_s=_PATIENCE_S)

    partitions = parse_sinfo(ask(*_SINFO).check().stdout)
    if not partitions:
        raise UnavailableError(
            "Slurm has no partition that is up", hint="check their states with: sinfo"
        )
    try:
        name = parse_cluster_name(ask("scontrol", "show", "config").stdout)
        told = ask(*_SACCTMGR, user, "withassoc", _FIELDS).stdout
    except EchelonError:
        return Survey(partitions=partitions)
    return Survey(name=name, partitions=partitions, membership=parse_membership(told, name))


def list_partitions(shell: Shell, environ: Mapping[str, str]) -> list[str]:
    """Return the names of partitions that are up, with a short time-out.

    Raises:
        EchelonError: Slurm is not installed or does not respond.
    """
    shown = shell.run(_SINFO, env=scrub(environ), timeout_s=_GLANCE_S).check().stdout
    return [one.name for one in parse_sinfo(shown)]


def parse_cluster_name(text: str) -> str:
    """Return the cluster's name from `scontrol show config`, or ''."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Parse sinfo's output: partitions that are up, each with its types of nodes."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|", 6)
        name = fields[0].rstrip("*")
        if len(fields) < 7 or fields[1] != "up" or not _NAME.fullmatch(name):
            continue
        label, _, limit, usual, count, cpus, gres = fields
        one = found.get(name) or Partition(
            name=name, default=label != name, limit=limit, usual=usual
        )
        if count.isdecimal() and cpus.isdecimal():
            gpus, gpu_type = parse_gres(gres)
            kind = NodeKind(count=int(count), cpus=int(cpus), gpus=gpus, gpu_type=gpu_type)
            one = replace(one, kinds=(*one.kinds, kind))
        found[name] = one
    return tuple(found.values())


def parse_gres(text: str) -> tuple[int, str]:
    """Return the number of GPUs of a node and their type; of several types, the most frequent.

    Forms seen: `gpu:a100:4(S:0-1)`, `gpu:8`, `gpu:a100:2,gpu:a30:2,nvme:1`, `(null)`.
    """
    by_type: dict[str, int] = {}
    for match in _GRES_GPU.finditer(text):
        kind = match["type"] or ""
        by_type[kind] = by_type.get(kind, 0) + int(match["count"])
    kind = max(by_type, key=lambda one: by_type[one], default="")
    return by_type.get(kind, 0), kind if _NAME.fullmatch(kind) else ""


def parse_membership(text: str, cluster: str) -> Membership:
    """Parse sacctmgr's output about a user; rows of other clusters in the database are ignored."""
    rows = [line.strip().split("|") for line in text.splitlines()]
    rows = [row for row in rows if len(row) == 6 and cluster in ("", row[1])]
    accounts = dict.fromkeys(row[2] for row in rows if _NAME.fullmatch(row[2]))
    qos = dict.fromkeys(one for row in rows for one in row[4].split(",") if _NAME.fullmatch(one))
    default = next((row[0] for row in rows if row[0] in accounts), "")
    return Membership(account=default, accounts=tuple(accounts), qos=tuple(qos))
