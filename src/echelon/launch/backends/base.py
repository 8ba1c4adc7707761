"""What a controller needs of the place where its nodes are. Each backend implements this."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from echelon.launch.protocol.messages import Pace
from echelon.launch.protocol.stop import Stop

CAUSE = "no agents: "
"""Begins the line, in such a process's log, that says why they do not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process that was started to bring up some of the agents."""

    pid: int
    nodes: frozenset[int]
    log: Path
    dismissal: int = 0
    """A signal that tells it that no more are wanted; 0 where it ends with its agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known of nodes from which no agent has come yet."""

    waits: str = ""
    """What is waited for, as a job waits in a queue; empty once there are nodes."""
    absent: frozenset[int] = frozenset()
    """Those that there will not be,"""
    lost: frozenset[int] = frozenset()
    """those that are gone, and may be replaced,"""
    faults: Mapping[int, str] = field(default_factory=dict)
    """and those where no agent can be."""


class Starter(Protocol):
    """Where agents come from."""

    nodes: int
    """How many there will be."""

    def ranks(self, node: int) -> int:
        """Return how many a node is to have, where neither the request nor GPUs say."""

    def host(self, node: int) -> str:
        """Return what the cluster calls a node."""

    def candidates(self) -> list[str]:
        """Return our own addresses at which they may reach us, the best first."""

    def start(
        self,
        nodes: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str],
        logs: Path,
        key: bytes,
    ) -> list[Started]:
        """Start those of some nodes; each reads the key from its input (`receive_key`)."""

    def outlook(self) -> Outlook:
        """Return what is known of nodes from which no agent has come yet."""


LOOK_S = 30.0
"""How often the cluster is asked whether anything has changed."""


RESERVE_S = 5.0
"""What is left of the job's time for sending agents away and writing down how it ended."""


_SAVE_S = 20.0
"""What saving may take as long as nobody has measured it."""


ANSWER_S = 5.0
"""How long an answer may take when ranks wait for it."""


RESUMABLE_EXIT = 75
"""Exit code of a job that was stopped before its work was done and can be resumed: EX_TEMPFAIL."""


SUPERSEDED = Stop(
    "superseded", "another attempt of this run has begun", RESUMABLE_EXIT, at_once=True
)


class View(Protocol):
    """What has to be known of the run to tell when it should stop."""

    def lead_s(self) -> float:
        """Return how long before their end ranks have to be told."""

    def can_move(self) -> bool:
        """Tell whether the run would go on elsewhere, from where it is."""

    def nodes(self) -> list[str]:
        """Return the nodes that it is on."""


class Allocation(Protocol):
    """The place that a controller has for its agents."""

    async def watch(self, post: Callable[[Stop], None], view: View) -> None:
        """Tell of a reason to stop, in time."""

    async def explain(self, stop: Stop) -> Stop:
        """Return a stop that a signal has brought, with what the cluster says about it."""

    async def reaches_cluster(self) -> bool:
        """Tell whether the cluster answers: if not, it may be we who are cut off."""

    async def held(self, hosts: Collection[str]) -> frozenset[str] | None:
        """Return which of these nodes are still ours: one that died is not.

        None when nobody answers.
        """

    async def left_s(self) -> float | None:
        """Return how much time is left to us; None for all there is, or when nobody answers."""


def lead_from(paces: Sequence[Pace]) -> float:
    """Return how long ranks need to reach a point where they can stop, and to save. Pure."""
    save_s = max(pace.save_us for pace in paces) / 1e6
    way_s = max(pace.way_us for pace in paces) / 1e6
    return 2 * RESERVE_S + 2 * way_s + max(_SAVE_S, 2 * save_s)
