"""E307: the host of the rendezvous."""

import re
from collections.abc import Iterator

from echelon.lint.bash import Assignment, Where, Word
from echelon.lint.files import Place
from echelon.lint.launches import Launch
from echelon.lint.patterns import pattern
from echelon.lint.rendezvous import FIRST_NODE, host_words, is_read
from echelon.lint.rule import ERROR, WARNING, Hit, rule
from echelon.lint.script import Script

_OWN_HOST = frozenset({"HOSTNAME", "SLURMD_NODENAME", "HOST"})
_LOOPBACK = pattern(r"(localhost|127\.0\.0\.1|0\.0\.0\.0|::1)(:.*)?")
_ALL_NODES = pattern(
    r"\$\{?SLURM_(?:JOB_|STEP_)?NODELIST\}?(?::.*)?|"
    r"(?:\$\(|`)\s*scontrol\s+show\s+hostnames?[^|;&]*(?:\)|`)(?::.*)?"
)
_NAMED = ("MASTER_ADDR", "MASTER_IP", "HEAD_NODE_IP")


@rule("E307", ERROR)
def wrong_host(script: Script) -> Iterator[Hit]:
    """Wrong rendezvous host.

    All ranks must connect to the same host: the first node. In the job script, `$(hostname)` is the
    first node. In a command that srun starts, it is a different name on each node.

    Example:
         #!/bin/bash
         #SBATCH --nodes=2
         #SBATCH --ntasks-per-node=1
         #SBATCH --exclusive
        -srun torchrun --nnodes=2 --rdzv_endpoint=localhost:29500 train.py    # <- here
        +srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29500 train.py
    """
    if not script.job.several_nodes:
        return
    # The first element of an array of hosts is one host, also as plain $NAME.
    arrays = {assignment.name for assignment in script.assignments if assignment.array}
    told = set[str]()
    for assignment in script.assignments:
        sure = assignment.certain and assignment.name not in arrays
        reason = _reason(assignment.value, assignment.where) if sure else ""
        handed_on = assignment.value.names & told
        if reason and not handed_on and _is_told(script, assignment):
            told.add(assignment.name)
            what = f"{reason}. The ranks never connect."
            yield Hit(at=assignment, what=what, fix=FIRST_NODE, severity=WARNING)
    for launch in [one.launch for one in script.started]:
        for word in host_words(launch):
            # Variables are checked where they are assigned.
            set_here = {a.name for a in script.assignments} & word.names
            reason = "" if set_here else _reason(word, _shell_of(script, launch))
            nodes = launch.launcher.option("nnodes", "num-machines") if launch.launcher else None
            if reason:
                yield Hit(
                    at=Place(launch.path, word.line or launch.line),
                    what=f"{reason}. The ranks never connect.",
                    fix=FIRST_NODE,
                    severity=None if nodes and (nodes.number or 0) > 1 else WARNING,
                )


def _is_told(script: Script, assignment: Assignment) -> bool:
    """Tell whether a variable is the rendezvous host, not just an intermediate value."""
    name = assignment.name
    if name in _NAMED and is_read(script, name):
        return True
    words = [word for one in script.started for word in host_words(one.launch)]
    if any(name in re.findall(r"\$\{?(\w+)", word.text) for word in words):
        return True
    # In the word, a known value has replaced its variable.
    return assignment.value.known and any(name in word.names for word in words)


def _shell_of(script: Script, launch: Launch) -> Where:
    """Return which shell expanded the words of a launcher."""
    inner = (c for s in script.shells[1:] if s.where is Where.TASK for c in s.commands)
    own = launch.command.line == launch.line and launch.command.path == launch.path
    lines = {(command.path, command.line) for command in inner}
    return Where.TASK if not own and (launch.path, launch.line) in lines else Where.BATCH


def _reason(value: Word, where: Where) -> str:
    """Return why ranks on several nodes cannot connect to a host; empty if they can."""
    names = [command.name for command in value.commands]
    if _LOOPBACK.fullmatch(value.text):
        return f"'{value.text}' is a different host on each node"
    if _ALL_NODES.fullmatch(value.text):
        return "This is the list of all nodes, not a single node"
    if re.fullmatch(r"\$\{?SLURM_SUBMIT_HOST\}?(:.*)?", value.text):
        return "This is the host where sbatch ran, but rank 0 runs on the first node of the job"
    own = "hostname" in names or value.names & _OWN_HOST
    if where is Where.TASK and own and "scontrol" not in names:
        return "This is expanded on every node, so each node uses its own name"
    return ""
