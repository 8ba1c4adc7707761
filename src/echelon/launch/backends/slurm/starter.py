"""Starts one agent on every node of a Slurm job, through srun."""

import re
from collections.abc import Mapping, Sequence

from echelon.core import addresses
from echelon.core.jobs import own_job
from echelon.core.nodes import expand
from echelon.core.shell import Shell
from echelon.core.slurm_text import parse_version
from echelon.launch.backends.base import (
    AgentCommand,
    ChildStarter,
    Outlook,
    Started,
    StartedProcess,
)
from echelon.launch.protocol.rank_environment import NODE, render_key
from echelon.world import parse_counts

_SHAPE = re.compile(
    r"S(?:LURM|RUN)_(?:.*PER_TASK|.*PER_GPU|NTASKS.*|NPROCS|TASKS_PER_NODE|GPUS.*|CPU_BIND.*|MEM_.*|"
    r"TRES_.*|DISTRIBUTION|STEP_.*|EXACT|OVERLAP|LABELIO|JOB_NUM_NODES_FOR_STEP)"
)
"""Variables through which our step would inherit the shape of the job, or of a step around us."""


class SlurmStarter(ChildStarter):
    """One agent on every node of the job around us, whatever its shape."""

    def __init__(self, shell: Shell, environ: Mapping[str, str]) -> None:
        self._shell, self._environ = shell, environ
        self._job = environ["SLURM_JOB_ID"]
        self._hosts = expand(environ["SLURM_JOB_NODELIST"])
        self.nodes = len(self._hosts)

    def ranks(self, node: int) -> int:
        """Return the number of tasks that srun would start."""
        counts = parse_counts(self._environ.get("SLURM_TASKS_PER_NODE", ""))
        return counts[node] if node < len(counts) else 1

    def host(self, node: int) -> str:
        return self._hosts[node]

    def candidates(self) -> list[str]:
        """Ask Slurm for the addresses of the nodes, and the kernel for the route to them."""
        if self.nodes == 1:
            return [addresses.LOOPBACK, *addresses.host_addresses()]
        shown = self._shell.run(["scontrol", "show", "node", ",".join(self._hosts)], timeout_s=60)
        peers = re.findall(r"NodeAddr=(\S+)", shown.stdout)
        towards = [addresses.address_towards(peer) for peer in peers]
        found = [a for a in towards if a and not a.startswith("127.")]
        return list(dict.fromkeys([*found, *addresses.host_addresses()]))

    def start(self, nodes: Sequence[int], command: AgentCommand) -> list[Started]:
        clean, key = without_shape(command.env), render_key(command.key)
        found: list[Started] = []
        for group, gpus in self._steps(nodes):
            log = command.logs / f"srun-{group[0]}.log"
            hosts = ",".join(self._hosts[node] for node in group)
            step = [
                *("srun", f"--jobid={self._job}", f"--nodelist={hosts}"),
                *(f"--nodes={len(group)}", f"--ntasks={len(group)}", "--ntasks-per-node=1"),
                *("--overlap", "--cpu-bind=none", "--mem=0", "--no-kill", "--export=ALL"),
                *("--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--input=all"),
                gpus,
            ]
            # A single agent is told its node; several find their own in the job's host list.
            place = {NODE: str(group[0])} if len(group) == 1 else {}
            own = {**clean, **place}
            pid = self._shell.start([*step, *command.argv], log=log, env=own, stdin=key)
            found.append(StartedProcess(pid=pid, nodes=frozenset(group), log=log))
        return found

    def outlook(self) -> Outlook:
        return Outlook()  # the job starts with all of its nodes

    def _steps(self, nodes: Sequence[int]) -> list[tuple[list[int], str]]:
        """Return the nodes of each srun, and its option for all their GPUs.

        If nodes were granted different numbers, as with a total of `--gpus`, each node gets a step
        of its own. With `--gres`, Slurm 22.05 refuses such a step more GPUs than the node with the
        least has; with `--gpus`, the second step waits in 24.11 until the first has ended.
        """
        argv = ["scontrol", "--details", "--oneliner", "show", "job", own_job(self._environ)]
        granted = parse_granted(self._shell.run(argv, timeout_s=60).check().stdout)
        if len(set(granted.values())) == 1:
            count = next(iter(granted.values()))
            return [(list(nodes), f"--gres=gpu:{count}" if count else "--gres=none")]
        counts = {node: granted.get(self._hosts[node], 0) for node in nodes}
        output = self._shell.run(["scontrol", "--version"], timeout_s=60).stdout
        option = "--gpus=" if parse_version(output)[:2] <= (22, 5) else "--gres=gpu:"
        return [
            ([node], f"{option}{count}" if count else "--gres=none")
            for node, count in counts.items()
        ]


def without_shape(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that would give a step the shape of its job."""
    return {name: value for name, value in env.items() if not _SHAPE.fullmatch(name)}


def parse_granted(text: str) -> dict[str, int]:
    """Parse the number of GPUs on each node from `scontrol --details show job`."""
    found: dict[str, int] = {}
    for hosts, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", text):
        counts = re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres)
        for host in expand(hosts):
            found[host] = sum(map(int, counts))
    return found
