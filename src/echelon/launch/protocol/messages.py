"""What controller, agents and zygotes send each other: these dataclasses are the protocol.

Controller and agents exchange them in authenticated frames (`wire.py`), an agent and its zygote in
packets of a socket pair, where file descriptors can travel beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from echelon.launch.protocol.wire import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of all; it has no fields of its own."""


# --- agent → controller -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """An agent introduces itself."""

    node: int
    """Its place among the nodes of the allocation."""
    name: str
    """What people call the node."""
    host: str
    """Equal for processes that share one network stack."""
    addresses: list[str]
    pid: int = 0
    gpus: int = 0
    """How many this node was granted."""
    fault: str = ""
    """What its check found; then it is not to be used."""
    fault_own: bool = False
    """Whether that is surely this node's, and nothing that all share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Message):
    """Sockets for the ranks' meeting are bound."""

    generation: int
    ports: dict[str, int]
    """Address → port."""
    served: bool
    """Whether a store will be served there; else rank 0 opens its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(Message):
    """Which of the probed addresses this node can reach."""

    generation: int
    addresses: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted(Message):
    generation: int
    rank: int
    pid: int
    warm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited(Message):
    """A rank has gone, and all that it had started."""

    generation: int
    rank: int
    code: int = 0
    signal: int = 0
    """What killed it; 0 for an ordinary exit."""
    step: int = -1
    """The last one it spoke of; -1 when it spoke of none."""
    error: dict[str, Any] = field(default_factory=dict)
    """Its own record of an exception: type, message, traceback."""
    tail: str = ""
    """The end of its log."""
    out_of_memory: bool = False
    """Whether the kernel has just killed for memory on this node."""
    spent: dict[str, int] = field(default_factory=dict)
    """What it did with its time: numbers of its beacon, see `spending`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteLost(Message):
    """A zygote has died while it had ranks; they go with it, and are told of afterwards."""

    generation: int
    code: int = 0
    signal: int = 0
    """What killed it; 0 for an ordinary exit."""
    out_of_memory: bool = False
    """As with a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Message):
    """All ranks of a generation are gone from this node."""

    generation: int


class Pace(NamedTuple):
    """How fast a node's ranks save and could stop; -1 where no rank has reported it."""

    save_us: int = -1
    """Longest time to save."""
    way_us: int = -1
    """Longest time between two points at which a rank can stop."""
    saved_low: int = -1
    """Newest saved step of the rank that is furthest behind,"""
    saved_high: int = -1
    """and of the one that is furthest ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse(Message):
    """I live. From an agent: and so do these ranks."""

    generation: int = 0
    ranks: list[list[Any]] = field(default_factory=list)
    """Rank, step, state (R, S, T, D …), CPU seconds used by it and its children."""
    pace: Pace | None = None
    """None without ranks. On the wire it is a list."""

    def __post_init__(self) -> None:
        if self.pace is not None:
            object.__setattr__(self, "pace", Pace(*self.pace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled(Message):
    """Somebody, mostly Slurm, has signalled the agent."""

    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks(Message):
    """Python stacks of a node's ranks, or what else can be said of them."""

    generation: int
    ranks: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Message):
    """How far a node's ranks are, once they have come to a proposed place or are past it."""

    generation: int
    proposed: int
    furthest: int
    """-1 when some rank does not listen."""
    waiting: bool
    """Whether all of them wait there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Message):
    """What a node has found, of which the doctor had asked."""

    number: int
    """Of the question."""
    found: dict[str, Any]
    error: str = ""
    """Why it could not be found out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Message):
    """Something for the log."""

    text: str


# --- controller → agent -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Open(Message):
    """Bind sockets on these addresses for the ranks' meeting."""

    generation: int
    addresses: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Message):
    """Try to reach these."""

    generation: int
    ports: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """The controller's time of day: it decides over the order of lines from several nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Message):
    """End a generation's ranks: ask first, if there is time."""

    generation: int
    grace_s: float = 0.0
    signal: int = 0
    """How to ask; 0 where somebody else has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose(Message):
    """Have the ranks wait at this place; 0 only asks how far they are."""

    generation: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Message):
    """Have the ranks stop at this place, where all of them wait."""

    generation: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump(Message):
    """Send the stacks of all ranks."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(Message):
    """Find something out: the doctor's questions."""

    number: int
    what: str
    about: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message):
    """End everything, and go."""


# --- agent → zygote ---------------------------------------------------------------------------

ZYGOTE_PACKET = 1 << 17
"""Bytes of the largest message in either direction: a rank's variables are its largest part."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    temp: str
    """Folder for the sockets of multiprocessing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStore(Message):
    """Fork a process that serves the ranks' store on the socket that comes with this message."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRanks(Message):
    """Signal a generation's ranks; SIGKILL also ends their process groups and their store."""

    generation: int
    signal: int


# --- zygote → agent ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteReady(Message):
    """Imports are done: ranks can be forked."""

    serves_store: bool
    cold_reason: str
    """Why ranks start cold; empty if they start warm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForked(Message):
    rank: int
    pid: int
    warm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReaped(Message):
    """A rank has exited, and its process group has been killed."""

    rank: int
    status: int
    """Exit code; the negative number of the signal that killed it."""


_KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}
# A controller of thousands of nodes reads and writes thousands of messages at once: names of fields
# are looked up here, once. (A dict, for it is a set that keeps its order.)
_FIELDS = {kind: dict.fromkeys(f.name for f in fields(kind)) for kind in _KINDS.values()}


def encode(message: Message) -> dict[str, Any]:
    kind = type(message)
    return {"kind": kind.__name__, **{name: getattr(message, name) for name in _FIELDS[kind]}}


def decode(record: Mapping[str, Any]) -> Message:
    """Return the message.

    Raises:
        WireError: there is no such kind, or it has other fields.
    """
    values = dict(record)
    name = values.pop("kind", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    known = _FIELDS[kind].keys() if kind else set()
    # Names alone are shown: values may be of any size and depth.
    if kind is None or not values.keys() <= known:
        shown = f"{name if isinstance(name, str) else ''}({', '.join(values.keys() - known)})"
        raise WireError(f"the peer sent a message we do not know: {shown[:80]}")
    try:
        return kind(**values)
    except TypeError as error:
        raise WireError(f"the peer sent half a message: {kind.__name__}") from error
