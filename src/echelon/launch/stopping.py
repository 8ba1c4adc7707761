"""Where all ranks stop: agreed in two phases, for a step number in a message is already stale.

The controller proposes a place a little ahead. Ranks that come there wait; those that were past it
already say so, and a later place is proposed. When all wait, it commits, and all stop there, having
done the same steps. A place is a count of the moments at which a rank could stop.
"""

import asyncio
from collections.abc import Callable, Iterable

from echelon.launch.beacon import Beacon
from echelon.launch.messages import Commit, Place, Propose

WITHDRAWN = -1
"""A place that is none: who waits at another goes on."""
_LOOK_S = 0.005
_FAR = 64


class Accord:
    """The controller's side. Pure: it is told what agents answer, and says what to tell them."""

    def __init__(self, nodes: Iterable[int], generation: int) -> None:
        self._nodes, self._generation = set(nodes), generation
        self._answers: dict[int, Place] = {}
        self._proposed = 0
        self._margin = 1
        self.committed = False
        self.deaf = False
        """Whether some rank does not listen, so that there will be no accord."""

    def begin(self) -> Propose:
        """Return the first question, which is only how far everybody is."""
        return Propose(generation=self._generation, place=0)

    def hear(self, node: int, answer: Place) -> Propose | Commit | None:
        """Take an agent's answer; return what to tell all agents once all have given theirs."""
        if self.committed or answer.proposed != self._proposed or node not in self._nodes:
            return None
        self._answers[node] = answer
        if answer.furthest < 0:
            self.deaf = True
        if self.deaf or self._answers.keys() != self._nodes:
            return None
        if self._proposed and all(known.waiting for known in self._answers.values()):
            self.committed = True
            return Commit(generation=self._generation, place=self._proposed)
        furthest = max(known.furthest for known in self._answers.values())
        self._proposed = furthest + self._margin
        self._margin = min(_FAR, 2 * self._margin)
        self._answers = {}
        return Propose(generation=self._generation, place=self._proposed)


async def await_place(
    beacons: Callable[[], list[Beacon]], generation: int, place: int
) -> Place | None:
    """Wait until a node's ranks have come to a place, or are past it; None when another is asked.

    Place 0 is a question: how far are they?
    """
    while True:
        found = beacons()
        if place and any(beacon.proposed != place for beacon in found):
            return None
        # First who has come, then who waits: a rank writes these in the other order.
        furthest = min((beacon.passed for beacon in found), default=0)
        if furthest >= 0:
            furthest = max((beacon.passed for beacon in found), default=0)
        arrived = all(beacon.passed >= place for beacon in found)
        waiting = all(beacon.waiting == place for beacon in found)
        if furthest < 0 or arrived:
            return Place(generation=generation, proposed=place, furthest=furthest, waiting=waiting)
        await asyncio.sleep(_LOOK_S)
