"""Which ranks run on which node. Pure."""

import itertools
from collections.abc import Sequence

from echelon.launch.controller.rendezvous import Endpoint
from echelon.launch.protocol.messages import Start


def place_ranks(
    counts: Sequence[int], endpoint: Endpoint, *, generation: int, now_s: float, saved: str
) -> list[Start]:
    """Return the order for each node; ranks are numbered from the first node on.

    Args:
        counts: number of ranks of each node.
        endpoint: where they connect.
        generation: whose ranks they are.
        now_s: the time, by the controller's clock.
        saved: the newest checkpoint that a script has reported.
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
            address=endpoint.address,
            port=endpoint.port,
            served=endpoint.served,
            now_s=now_s,
            saved=saved,
        )
        for node_rank, (first, count) in enumerate(zip(firsts, counts, strict=False))
    ]
