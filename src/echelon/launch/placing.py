"""Which ranks are on which node. Pure."""

import itertools
from collections.abc import Sequence

from echelon.launch.meeting import Meeting
from echelon.launch.messages import Start


def place_ranks(
    counts: Sequence[int], meeting: Meeting, *, generation: int, now_s: float
) -> list[Start]:
    """Return the order for each node: ranks are counted from the first node on.

    Args:
        counts: how many ranks each node has.
        meeting: where they meet.
        generation: whose ranks they are.
        now_s: the time, by the controller's clock.
    """
    firsts = itertools.accumulate(counts, initial=0)
    return [
        Start(
            generation=generation,
            node_rank=node_rank,
            nodes=len(counts),
            first_rank=first,
            count=count,
            world_size=sum(counts),
            address=meeting.address,
            port=meeting.port,
            served=meeting.served,
            now_s=now_s,
        )
        for node_rank, (first, count) in enumerate(zip(firsts, counts, strict=False))
    ]
