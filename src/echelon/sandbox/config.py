"""What a sandbox cluster looks like: its size, and the text of each configuration file.

Pure: nothing here touches the machine. Why the odd values are what they are stands beside them.
"""

import json
from dataclasses import asdict, dataclass
from typing import Self

from echelon.core.nodes import compress
from echelon.core.units import format_memory
from echelon.sandbox.layout import DEFAULT_NAME, Layout, is_name

LOGIN = "login"
"""The host that carries slurmctld and on which `exec` and `shell` run."""

MESSAGE_TIMEOUT_S = 10
CONTROLLER_MESSAGE_TIMEOUT_S = 2

MAX_NODES = 200
MAX_GPUS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """What a user asks for."""

    name: str = DEFAULT_NAME
    nodes: int = 4
    gpus: int = 4
    """Per node."""
    gpu_type: str = "a100"
    cpus: int = 16
    """Per node; more than the machine has is fine."""
    mem_mib: int = 64 * 1024
    """Per node; likewise."""
    accounting: bool = False

    def problems(self) -> list[str]:
        """Return everything that is wrong with it."""
        bounds = {
            "--nodes": (self.nodes, 1, MAX_NODES),
            "--gpus": (self.gpus, 0, MAX_GPUS),
            "--cpus": (self.cpus, 1, 1024),
        }
        found = [
            f"{flag} is {value}, but must be between {low} and {high}"
            for flag, (value, low, high) in bounds.items()
            if not low <= value <= high
        ]
        if not 1 <= self.mem_mib <= 2**30:
            found.append(f"--mem is {format_memory(self.mem_mib)}, but must be 1M to 1024T")
        if not is_name(self.name):
            found.append(f"--name is '{self.name}', but may only have letters, digits and '-'")
        if not (self.gpu_type.isascii() and self.gpu_type.replace("_", "").isalnum()):
            found.append(f"--gpu-type is '{self.gpu_type}', but may only have letters, digits, '_'")
        return found

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How the hosts are reached."""

    kind: str
    """`namespaces`: every host has its own network; `loopback`: all share 127.0.0.1."""
    addresses: dict[str, str]
    """Host → address."""
    ports: dict[str, int]
    """Host → port of its daemon (slurmctld or slurmd)."""
    outside: str = ""
    """The address by which this machine itself takes part in the hosts' network, if it does."""
    machine: str = "localhost"
    """This machine's own host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    """What `sandbox.json` says: all that a later command has to know."""

    config: SandboxConfig
    network: Network
    user: str
    """Who the daemons run as."""
    database_port: int = 0
    ready: bool = False

    def render(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        record = json.loads(text)
        config = SandboxConfig(**record.pop("config"))
        network = Network(**record.pop("network"))
        return cls(config=config, network=network, **record)


# --- rendering ------------------------------------------------------------------------------


def render_slurm_conf(
    state: SandboxState, layout: Layout, *, message_timeout_s: int = MESSAGE_TIMEOUT_S
) -> str:
    """Return slurm.conf, used by every node and every Slurm command.

    slurmctld alone has another message time-out: with Slurm's own it would notice a dead node late,
    and with its own everybody else would give up too soon on a busy machine.
    """
    config, network = state.config, state.network
    nodes = compress(config.node_names)
    # Without a default, a job that names no memory takes the whole node's, and no second one fits.
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
            "# A requeued job waits for cred_expire before it starts again; the default is 120 s.",
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
            "# Nodes declare more than the machine has, and need no cgroup.",
            "SlurmdParameters=config_overrides",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/linux",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "PropagateResourceLimitsExcept=MEMLOCK,NOFILE",
        ],
        [
            "# slurmctld takes a node as lost after a failed ping or two; a ping fails after",
            "# MessageTimeout + 1 connects of TCPTimeout each. Its MessageTimeout is shorter than",
            "# the others' (slurmctld.conf), hence no complaint about files that differ.",
            "SlurmdTimeout=1",
            f"MessageTimeout={message_timeout_s}",
            "TCPTimeout=1",
            "DebugFlags=NO_CONF_HASH",
            "ReturnToService=2",
            "KillWait=5",
            "MinJobAge=3600",
        ],
        [
            "# Scheduled at every turn of slurmctld's loop, which is one second.",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_resolution=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "EnforcePartLimits=ALL",
        ],
        [
            "# A job in `high` takes the place of one in `low`: SIGTERM, then GraceTime seconds.",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
        ],
        _accounting_lines(state, layout),
        # Without a network of its own nothing may listen where other machines can reach it.
        ["CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"] if loopback else [],
        ["GresTypes=gpu"] if config.gpus else [],
        _node_lines(state),
        [
            f"PartitionName=DEFAULT Nodes={nodes} MaxTime=INFINITE DefMemPerCPU={share} State=UP",
            "PartitionName=low Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5",
            "PartitionName=high PriorityTier=10 PreemptMode=OFF",
        ],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _accounting_lines(state: SandboxState, layout: Layout) -> list[str]:
    if not state.config.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={state.network.addresses[LOGIN]}",
        f"AccountingStoragePort={state.network.ports['slurmdbd']}",
        # For slurmdbd the "password" is where munged listens.
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
    ]


def _node_lines(state: SandboxState) -> list[str]:
    config, network = state.config, state.network
    shape = f"CPUs={config.cpus} RealMemory={config.mem_mib} State=UNKNOWN"
    if config.gpus:
        # The type is a feature as well: scripts ask for either.
        shape += f" Gres=gpu:{config.gpu_type}:{config.gpus} Feature={config.gpu_type}"
    return [
        f"NodeName={name} "
        + (f"NodeHostname={network.machine} " if network.kind == "loopback" else "")
        + f"NodeAddr={network.addresses[name]} Port={network.ports[name]} {shape}"
        for name in config.node_names
    ]


def render_gres_conf(config: SandboxConfig, layout: Layout) -> str:
    """Slurm wants a character device per GPU; CUDA_VISIBLE_DEVICES is the number in its name."""
    lines = ["AutoDetect=off"]
    if config.gpus:
        last = f"[0-{config.gpus - 1}]" if config.gpus > 1 else "0"
        lines.append(
            f"NodeName={compress(config.node_names)} Name=gpu Type={config.gpu_type} "
            f"File={layout.devices}/gpu{last}"
        )
    return "\n".join(lines) + "\n"


def render_cgroup_conf() -> str:
    """slurmd loads a cgroup plugin even when nothing uses it; this one then touches nothing."""
    return "CgroupPlugin=cgroup/v1\n"


def render_slurmdbd_conf(state: SandboxState, layout: Layout, password: str) -> str:
    """Return slurmdbd.conf; it holds a password and must be readable by its owner alone."""
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
    """Return the /etc/hosts that every host sees: names resolve both ways, without DNS.

    A server that listens for IPv6 too, as torch's does, sees IPv4 peers by mapped addresses. DNS
    would look up what is mapped; here they need lines, with names that lead nobody to them.
    """
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    lines += [f"{address}\t{host}" for host, address in network.addresses.items()]
    lines += [f"::ffff:{address}\t{host}.mapped" for host, address in network.addresses.items()]
    if network.outside:
        lines.append(f"{network.outside}\t{network.machine}")
    return "\n".join(lines) + "\n"


def render_boot(layout: Layout) -> str:
    """Return the script that a simulated host runs first, in its new namespaces: `boot.sh HOST`."""
    return f"""\
# Turns the namespaces it runs in into the host $1, then holds them.
set -e
mount --bind '{layout.hosts}' /etc/hosts
# A job submitted with --export=NONE has no SLURM_CONF: it must find its cluster as on a real one.
[ ! -d /etc/slurm ] || mount --bind '{layout.etc}' /etc/slurm
mount -t tmpfs tmpfs /dev/shm
hostname "$1"
ip link set lo up
touch '{layout.run}'/"$1.booted"
# As process 1 of a node it also has to collect whatever is left without a parent.
sleep infinity &
wait
"""
