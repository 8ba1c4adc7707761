"""A sandbox's size and the text of its configuration files.

Pure functions; nothing here touches the machine. Comments give the reason for unusual values.
"""

import json
from dataclasses import asdict
from typing import Self

from echelon.core.frozen import frozen
from echelon.core.nodes import compress
from echelon.core.units import format_memory
from echelon.sandbox.layout import DEFAULT_NAME, Layout, is_name

LOGIN = "login"
"""The host that runs slurmctld and the commands of `exec` and `shell`."""

SSHD = "sshd"
"""Its key in `Network.ports`."""

MESSAGE_TIMEOUT_S = 10
CONTROLLER_MESSAGE_TIMEOUT_S = 2

NODE_TIMEOUT_S = 1
PATIENT_NODE_TIMEOUT_S = 10
"""For versions that may mark a node as lost before they have recorded its answer to a ping."""

MAX_NODES = 200
MAX_GPUS = 64


@frozen
class SandboxConfig:
    """The cluster requested by the user."""

    name: str = DEFAULT_NAME
    nodes: int = 4
    gpus: int = 4
    """Per node."""
    gpu_type: str = "a100"
    cpus: int = 16
    """Per node; may exceed what the machine has."""
    mem_mib: int = 64 * 1024
    """Per node; may exceed what the machine has."""
    accounting: bool = False
    ssh: bool = False
    """Whether sshd runs on the login host."""

    def problems(self) -> list[str]:
        """Return all invalid values."""
        bounds = {
            "--nodes": (self.nodes, 1, MAX_NODES),
            "--gpus": (self.gpus, 0, MAX_GPUS),
            "--cpus": (self.cpus, 1, 1024),
        }
        found = [
            f"{flag} must be between {low} and {high}, not {value}"
            for flag, (value, low, high) in bounds.items()
            if not low <= value <= high
        ]
        if not 1 <= self.mem_mib <= 2**30:
            found.append(f"--mem must be between 1M and 1024T, not {format_memory(self.mem_mib)}")
        if not is_name(self.name):
            found.append(f"--name may only contain letters, digits and '-', not '{self.name}'")
        if not (self.gpu_type.isascii() and self.gpu_type.replace("_", "").isalnum()):
            found.append(
                f"--gpu-type may only contain letters, digits and '_', not '{self.gpu_type}'"
            )
        return found

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@frozen
class Network:
    """Addresses and ports of the hosts."""

    kind: str
    """`namespaces`: every host has its own network; `loopback`: all share this machine's."""
    addresses: dict[str, str]
    """Host → address."""
    ports: dict[str, int]
    """Host → port of its slurmctld or slurmd; daemon → port for the others of the login host."""
    outside: str = ""
    """This machine's own address in the hosts' network, if it has one."""
    machine: str = "localhost"
    """This machine's own host name."""
    confined: bool = True
    """Whether the daemons can listen at the hosts' addresses only."""


@frozen
class SandboxState:
    """Contents of `sandbox.json`: what later commands need to know."""

    config: SandboxConfig
    network: Network
    user: str
    """The user that the daemons run as."""
    slurm: tuple[int, ...] = ()
    """Slurm's version; empty if unknown."""
    database_port: int = 0
    ready: bool = False

    def render(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        record = json.loads(text)
        config = SandboxConfig(**record.pop("config"))
        network = Network(**record.pop("network"))
        slurm = tuple(record.pop("slurm", ()))
        return cls(config=config, network=network, slurm=slurm, **record)


# --- rendering ------------------------------------------------------------------------------


def render_slurm_conf(
    state: SandboxState, layout: Layout, *, message_timeout_s: int = MESSAGE_TIMEOUT_S
) -> str:
    """Return slurm.conf, used by every node and every Slurm command.

    slurmctld alone uses a shorter message time-out, to detect a dead node quickly. With it, the
    other daemons and commands would give up too early on a busy machine.
    """
    config, network = state.config, state.network
    nodes = compress(config.node_names)
    # Without a default, a job that requests no memory gets the whole node's, so no second job fits.
    share = max(1, config.mem_mib // config.cpus)
    loopback = network.kind == "loopback"
    sections = [
        [
            f"ClusterName={layout.cluster_name}",
            f"SlurmctldHost={network.machine if loopback else LOGIN}({network.addresses[LOGIN]})",
            f"SlurmctldPort={network.ports[LOGIN]}",
            f"SlurmUser={state.user}",
            f"SlurmdUser={state.user}",
        ],
        [
            "# A requeued job cannot start again before cred_expire; the default is 120 s.",
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket},cred_expire=10",
        ],
        [
            f"SlurmctldPidFile={layout.run}/slurmctld.pid",
            f"SlurmdPidFile={layout.run}/slurmd-%n.pid",
            f"StateSaveLocation={layout.controller_state}",
            f"SlurmdSpoolDir={layout.spool}/%n",
            f"SlurmctldLogFile={layout.logs}/slurmctld.log",
            f"SlurmdLogFile={layout.logs}/slurmd-%n.log",
        ],
        [
            "# Nodes may declare more resources than the machine has, and do not use cgroups.",
            "SlurmdParameters=config_overrides",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/linux",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "PropagateResourceLimitsExcept=MEMLOCK,NOFILE",
        ],
        [
            "# slurmctld marks a node as lost after one or two failed pings. A ping fails after",
            "# MessageTimeout + 1 connection attempts of TCPTimeout each. slurmctld uses a shorter",
            "# MessageTimeout (slurmctld.conf); NO_CONF_HASH suppresses the warning about it.",
            f"SlurmdTimeout={_node_timeout_s(state.slurm)}",
            f"MessageTimeout={message_timeout_s}",
            "TCPTimeout=1",
            "DebugFlags=NO_CONF_HASH",
            "ReturnToService=2",
            "KillWait=5",
            "MinJobAge=3600",
        ],
        [
            "# Schedule in every iteration of slurmctld's main loop, once per second.",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "EnforcePartLimits=ALL",
        ],
        [
            "# Jobs in `high` preempt jobs in `low`: SIGTERM, and a requeue after GraceTime.",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ],
        _accounting_lines(state, layout),
        # On the machine's own network, daemons should not listen where other machines can reach
        # them, if that is possible.
        ["CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"]
        if loopback and network.confined
        else [],
        ["GresTypes=gpu"] if config.gpus else [],
        _node_lines(state),
        [
            f"PartitionName=DEFAULT Nodes={nodes} MaxTime=INFINITE DefMemPerCPU={share} State=UP",
            "PartitionName=low Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5",
            "PartitionName=high PriorityTier=10 PreemptMode=OFF",
        ],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _node_timeout_s(slurm: tuple[int, ...]) -> int:
    """Return the time without an answer after which slurmctld marks a node as lost.

    Slurm 22.05 records the answers to a ping before it sends the next one. Later versions let
    another thread record them. That thread may be late on a busy machine, and until the fix in
    24.11.6 (and in 25.05) slurmctld did not wait for it: nodes that answered were marked as lost.
    """
    fixed = slurm[:2] == (22, 5) or slurm[:2] >= (25, 11)
    return NODE_TIMEOUT_S if fixed else PATIENT_NODE_TIMEOUT_S


def _accounting_lines(state: SandboxState, layout: Layout) -> list[str]:
    if not state.config.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={state.network.addresses[LOGIN]}",
        f"AccountingStoragePort={state.network.ports['slurmdbd']}",
        # With slurmdbd, the "password" is the path of munged's socket.
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
    ]


def _node_lines(state: SandboxState) -> list[str]:
    config, network = state.config, state.network
    shape = f"CPUs={config.cpus} RealMemory={config.mem_mib} State=UNKNOWN"
    if config.gpus:
        # The type is also a feature: scripts request GPUs by either.
        shape += f" Gres=gpu:{config.gpu_type}:{config.gpus} Feature={config.gpu_type}"
    return [
        f"NodeName={name} "
        + (f"NodeHostname={network.machine} " if network.kind == "loopback" else "")
        + f"NodeAddr={network.addresses[name]} Port={network.ports[name]} {shape}"
        for name in config.node_names
    ]


def render_gres_conf(config: SandboxConfig, layout: Layout) -> str:
    """Return gres.conf.

    Slurm needs a character device per GPU; CUDA_VISIBLE_DEVICES is the number in its name.
    """
    lines = ["AutoDetect=off"]
    if config.gpus:
        last = f"[0-{config.gpus - 1}]" if config.gpus > 1 else "0"
        lines.append(
            f"NodeName={compress(config.node_names)} Name=gpu Type={config.gpu_type} "
            f"File={layout.devices}/gpu{last}"
        )
    return "\n".join(lines) + "\n"


def render_cgroup_conf() -> str:
    """Return cgroup.conf: slurmd always loads a cgroup plugin, and v1 does nothing if unused."""
    return "CgroupPlugin=cgroup/v1\n"


def render_slurmdbd_conf(state: SandboxState, layout: Layout, password: str) -> str:
    """Return slurmdbd.conf; it contains a password, so only its owner may read it."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost={LOGIN if state.network.kind == "namespaces" else "localhost"}
DbdAddr={state.network.addresses[LOGIN]}
DbdPort={state.network.ports["slurmdbd"]}
SlurmUser={state.user}
PidFile={layout.run}/slurmdbd.pid
LogFile={layout.logs}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={state.database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


def render_hosts(network: Network) -> str:
    """Return the hosts' /etc/hosts: names resolve in both directions, without DNS.

    A server that also listens on IPv6, such as torch's, sees IPv4 peers under mapped addresses.
    These need entries too, under a name of their own, so that HOST does not resolve to them.
    """
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{host}" for host, address in network.addresses.items()]
    lines += [f"::ffff:{address}\t{host}.mapped" for host, address in network.addresses.items()]
    if network.outside:
        lines.append(f"{network.outside}\t{network.machine}")
    return "\n".join(lines) + "\n"


def render_boot(layout: Layout) -> str:
    """Return boot.sh: the first program of a simulated host, run in its new namespaces."""
    return f"""\
# Sets up the current namespaces as the host $1 and keeps them alive.
set -e
mount --bind '{layout.hosts}' /etc/hosts
# A job submitted with --export=NONE has no SLURM_CONF and reads /etc/slurm, as on a real cluster.
[ ! -d /etc/slurm ] || mount --bind '{layout.etc}' /etc/slurm
mount -t tmpfs tmpfs /dev/shm
hostname "$1"
ip link set lo up
touch '{layout.run}'/"$1.booted"
# This shell is process 1 of a node: it also has to reap orphaned processes.
sleep infinity &
wait
"""
