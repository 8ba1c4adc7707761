"""An agent's part in the agreed stop: whether its ranks have come to a place."""

import asyncio
from collections.abc import Callable

from echelon.launch.protocol.messages import Place
from echelon.launch.protocol.rank_shm import RankShm

_LOOK_S = 0.005


async def await_place(
    beacons: Callable[[], list[RankShm]], generation: int, place: int
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
