"""What controller, agents and zygotes send each other: these dataclasses are the protocol.

Controller and agents exchange them in authenticated frames (`wire.py`), an agent and its zygote in
packets of a socket pair, where file descriptors can travel beside them.
"""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, NamedTuple

from echelon.core.frozen import frozen
from echelon.launch.protocol.wire import WireError


@frozen
class Message:
    """Base class; has no fields."""


# --- agent → controller -----------------------------------------------------------------------


@frozen
class Hello(Message):
    """An agent introduces itself."""

    node: int
    """Index among the nodes of the allocation."""
    name: str
    """The node's name, for users."""
    host: str
    """The same for all processes that share a network stack."""
    addresses: list[str]
    pid: int = 0
    gpus: int = 0
    """Number of GPUs granted on this node."""
    cpus: int = 0
    """Number of CPUs that a keeper may use."""
    fault: str = ""
    """Why the node cannot be used; empty if it can."""
    fault_own: bool = False
    """Whether the cause is this node, not something that all nodes share."""
    stage: str = ""
    """What it has of what is to be staged: `whole` or `part`; empty if nothing is."""
    stage_port: int = 0
    """Where it passes that on."""
    unstaged: str = ""
    """Why it cannot have a stage."""


@frozen
class Staged(Message):
    """A node has a copy, or goes on without one."""

    error: str = ""
    """Why it has none."""
    copied: int = 0
    """Bytes that were copied to it."""
    repaired: int = 0
    """Damaged files that were replaced."""
    changed: bool = False
    """Whether the environment is not the one that was submitted."""


@frozen
class Imported(Message):
    """The zygote has imported what ranks need."""

    seconds: float
    waited_s: float
    """How much of that it waited, mostly for storage."""


@frozen
class Opened(Message):
    """Sockets for the ranks' rendezvous are bound."""

    generation: int
    ports: dict[str, int]
    """Address → port."""
    served: bool
    """Whether the zygote serves a store there; otherwise rank 0 opens its own."""


@frozen
class Reached(Message):
    """Which of the probed addresses this node can reach."""

    generation: int
    addresses: list[str]


@frozen
class RankStarted(Message):
    generation: int
    rank: int
    pid: int
    warm: bool


@frozen
class RankExited(Message):
    """A rank has exited, and its process group has been killed."""

    generation: int
    rank: int
    code: int = 0
    signal: int = 0
    """The signal that killed it; 0 if it exited."""
    step: int = -1
    """The last step it reported; -1 if none."""
    saved: int = -1
    """The step of its newest checkpoint; -1 if none."""
    error: dict[str, Any] = field(default_factory=dict)
    """Its record of an exception: type, bases, message, traceback."""
    tail: str = ""
    """The end of its log."""
    out_of_memory: bool = False
    """Whether the kernel's OOM killer was just active on this node."""
    spent: dict[str, int] = field(default_factory=dict)
    """How it spent its time: numbers from its shared memory, see `run/rank_time.py`."""


@frozen
class ZygoteLost(Message):
    """A zygote with ranks has died. They die with it; their `RankExited` follow."""

    generation: int
    code: int = 0
    signal: int = 0
    """The signal that killed it; 0 if it exited."""
    out_of_memory: bool = False
    """As in `RankExited`."""


@frozen
class Ended(Message):
    """All ranks of a generation on this node have exited."""

    generation: int


class Pace(NamedTuple):
    """How fast a node's ranks save and could stop; -1 where no rank has reported it."""

    save_us: int = -1
    """Longest time to save."""
    stop_interval_us: int = -1
    """Longest time between two points at which a rank can stop."""
    saved_low: int = -1
    """Newest saved step of the rank that is furthest behind,"""
    saved_high: int = -1
    """and of the one that is furthest ahead."""


UNSTARTED = -2
"""In a pulse, instead of a step: the rank waits for its zygote."""


@frozen
class Pulse(Message):
    """Heartbeat; an agent's also describes its ranks."""

    generation: int = 0
    ranks: list[list[Any]] = field(default_factory=list)
    """Rank, step, state (R, S, T, D …), CPU seconds of its main thread. With the step `UNSTARTED`,
    state and seconds are those of the zygote that has to start the rank."""
    pace: Pace | None = None
    """None without ranks. On the wire it is a list."""
    spent: dict[str, int] = field(default_factory=dict)
    """How the ranks have spent their time so far: phase → microseconds of all."""

    def __post_init__(self) -> None:
        if self.pace is not None:
            object.__setattr__(self, "pace", Pace(*self.pace))


@frozen
class Signalled(Message):
    """The agent received a signal, mostly from Slurm."""

    signal: int


@frozen
class Stacks(Message):
    """Python stacks of a node's ranks, or a description of the process."""

    generation: int
    ranks: dict[str, str]


@frozen
class Traces(Message):
    """What a node's ranks have recorded about their collectives, see `collective_trace.py`."""

    generation: int
    ranks: dict[str, dict[str, Any]]
    """Without ranks that have no process group, or cannot record."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """NCCL's own counts, see `nccl_counts.py`: of all nodes' ranks, from one node."""


@frozen
class Place(Message):
    """How far a node's ranks are, once they have reached or passed a proposed place."""

    generation: int
    proposed: int
    furthest: int
    """-1 if some rank does not take part."""
    waiting: bool
    """Whether all of them wait at the proposed place."""


@frozen
class Answer(Message):
    """A probe's answer to the doctor."""

    number: int
    """The question's number."""
    found: dict[str, Any]
    """An `error` if there is no answer."""


@frozen
class Note(Message):
    """A line for the log."""

    text: str


MEET_S = 60.0
"""How long ranks may take to form a process group before the user is told."""


@frozen
class StoreUsed(Message):
    """A rank has used the store. Its server tells the agent, and the agent the controller."""

    generation: int


# --- controller → agent -----------------------------------------------------------------------


@frozen
class Open(Message):
    """Bind sockets on these addresses for the ranks' rendezvous."""

    generation: int
    addresses: list[str]


@frozen
class Probe(Message):
    """Try to reach these addresses and ports."""

    generation: int
    ports: dict[str, int]


@frozen
class Start(Message):
    """Start a node's ranks."""

    generation: int
    node_rank: int
    nodes: int
    first_rank: int
    count: int
    world_size: int
    address: str
    port: int
    served: bool
    now_s: float = 0.0
    """The controller's time of day, by which lines from several nodes are ordered."""
    saved: str = ""
    """The newest checkpoint that a script has reported: its step and path."""


@frozen
class End(Message):
    """End a generation's ranks, after a grace period if there is one."""

    generation: int
    grace_s: float = 0.0
    signal: int = 0
    """Signal at the start of the grace period; 0 if ranks were signalled already."""


@frozen
class Propose(Message):
    """Have ranks wait at this place; 0 only asks how far they are."""

    generation: int
    place: int


@frozen
class Commit(Message):
    """Have ranks stop at this place, where all of them wait."""

    generation: int
    place: int


@frozen
class Dump(Message):
    """Send the stacks of all ranks."""

    generation: int


@frozen
class ReadTraces(Message):
    """Send what all ranks have recorded about their collectives."""

    generation: int


@frozen
class Ask(Message):
    """A question of the doctor to a probe."""

    number: int
    what: str
    about: dict[str, Any]


@frozen
class Stage(Message):
    """Copy what is to be staged, from the first of these nodes that can be reached."""

    sources: list[list[Any]]
    """Address and port of each, the nearest first; empty to read the original itself."""


@frozen
class Leave(Message):
    """End all processes, and exit."""


# --- agent → zygote ---------------------------------------------------------------------------

ZYGOTE_PACKET = 1 << 17
"""Bytes of the largest message in either direction: a rank's variables are its largest part."""


@frozen
class ForkRank(Message):
    """Fork a rank; answered by `RankForked`, and by `RankReaped` when it has exited."""

    generation: int
    rank: int
    env: dict[str, str]
    """Variables of this rank, in addition to the zygote's own."""
    log: str
    """File for its output."""
    error: str
    """File for the record of an exception."""
    stacks: str
    """File for its stacks."""
    trace: str
    """Socket on which it answers what it has recorded about its collectives."""
    temp: str
    """Folder for the sockets of multiprocessing."""


@frozen
class ServeStore(Message):
    """Fork a process that serves the ranks' store on the socket that comes with this message."""

    generation: int


@frozen
class SignalRanks(Message):
    """Signal a generation's ranks; SIGKILL also ends their process groups and their store."""

    generation: int
    signal: int


# --- zygote → agent ---------------------------------------------------------------------------


@frozen
class ZygoteStarted(Message):
    """It runs, inside an image too: imports follow."""

    pid: int
    """Inside an image it is not a child of the agent."""
    python: str
    """Path and version of its Python."""
    torch: bool
    """Whether that has torch."""


@frozen
class ZygoteReady(Message):
    """Imports are done: ranks can be forked."""

    serves_store: bool
    cold_reason: str
    """Why ranks start cold; empty if they start warm."""
    unstaged: str = ""
    """Why it does not use the staged copy; empty if it does, or there is none."""
    import_s: float = 0.0
    """How long the imports took,"""
    waited_s: float = 0.0
    """and how much of that was spent waiting, mostly for storage."""


@frozen
class RankForked(Message):
    rank: int
    pid: int
    warm: bool


@frozen
class RankReaped(Message):
    """A rank has exited, and its process group has been killed."""

    rank: int
    status: int
    """Exit code; the negative number of the signal that killed it."""


# --- broker, keepers, and the controllers of steps: see launch/allocation ------------------------


@frozen
class StartAgent(Message):
    """Start the agent of a step on the node of this keeper; answered by `AgentExited`, once."""

    step: int
    number: int
    """Which of the agents of the step it is, over all that were ever started."""
    node: int
    """The node's index among those of the step."""
    hosts: list[str]
    """The nodes of the step."""
    gpus: list[int]
    cpus: list[int]
    """Positions among the GPUs and CPUs that the keeper was granted."""
    arguments: list[str]
    environ: dict[str, str]
    """Variables in addition to the keeper's own."""
    cwd: str
    log: str
    """File for its output."""


@frozen
class EndAgent(Message):
    """Kill an agent, which its guard cleans up after."""

    step: int
    number: int


@frozen
class AgentExited(Message):
    """The agent of a step has exited, or could not be started."""

    step: int
    number: int
    status: int
    """Exit code; the negative number of the signal that killed it."""


@frozen
class StartAgents(Message):
    """A step's controller asks its broker for agents on these of its nodes."""

    numbers: dict[str, int]
    """By node of the step: the number of the agent."""
    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    logs: str
    """Folder for their output."""


@frozen
class Lead(Message):
    """How long before the end of the job the ranks of a step have to be told."""

    seconds: float


@frozen
class StopStep(Message):
    """The broker asks a step to stop."""

    stop: dict[str, Any]
    """The fields of a `Stop`."""


@frozen
class Granted(Message):
    """The slots of a step are free: its ranks may start."""


@frozen
class Released(Message):
    """The ranks of a step have ended for good: its slots are free."""


@frozen
class Neighbours(Message):
    """Other steps that have used the same node."""

    node: int
    """The node's index among those of the step."""
    runs: list[str]


@frozen
class Departed(Message):
    """These nodes of the step no longer belong to the job."""

    nodes: list[int]


# --- owner → fork server, and its answers --------------------------------------------------------


@frozen
class Fork(Message):
    """Fork a process that becomes a program of the launcher; answered by `Exited`."""

    number: int
    role: str
    arguments: list[str]
    environ: dict[str, str]
    """Variables in addition to the fork server's own."""
    cwd: str
    log: str
    """File for its output."""
    cpus: list[int] = field(default_factory=list)
    """The CPUs that it may use; empty for all."""
    key: str = ""
    """The key that it reads from its input."""


@frozen
class ServerReady(Message):
    """The fork server has imported everything: orders are handled from now on."""


@frozen
class Kill(Message):
    """Kill a process and what it has forked."""

    number: int


@frozen
class Exited(Message):
    """A process has exited."""

    number: int
    status: int
    """Exit code; the negative number of the signal that killed it."""


@frozen
class BecomeZygote(Message):
    """The first order to a zygote that was forked from a process with its imports."""

    program: dict[str, Any]
    preload: list[str]
    environ: dict[str, str]
    """All of its variables."""
    log: str


_KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}
# With thousands of nodes a controller handles thousands of messages at once: field names are
# looked up once. (Dicts, because they are sets that keep their order.)
_FIELDS = {kind: dict.fromkeys(f.name for f in fields(kind)) for kind in _KINDS.values()}


def encode(message: Message) -> dict[str, Any]:
    kind = type(message)
    return {"kind": kind.__name__, **{name: getattr(message, name) for name in _FIELDS[kind]}}


def decode(record: Mapping[str, Any]) -> Message:
    """Return the message.

    Raises:
        WireError: the kind is unknown, or its fields differ.
    """
    values = dict(record)
    name = values.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    known = _FIELDS[kind].keys() if kind else set()
    # Show only names: values may have any size and depth.
    if kind is None or not values.keys() <= known:
        shown = f"{name if isinstance(name, str) else ''}({', '.join(values.keys() - known)})"
        raise WireError(f"the peer sent an unknown message: {shown[:80]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"the peer sent an incomplete message: {kind.__name__}") from error
