"""Plan all-reduces between pairs of nodes, and find slow nodes from the results. Pure.

In every round all nodes are measured at once, each with a different partner, so a thousand nodes
take as long as four. A healthy node has a healthy partner in at least one round, and is then as
fast as the others; a bad one never is. With three rounds this holds for any two bad nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from echelon.launch.doctor.record import Group

ROUNDS = 3
SLOW = 3.0
"""How many times slower than the others a suspect is; noise does not cause this three times."""
LAGGING = 10.0
"""The same for the time of an all-reduce of one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node that is worse than the others."""

    node: str
    what: str
    """`broken`, `slow` or `lagging`."""
    best: float
    """Bytes per second, or seconds, with its best partner."""
    usual: float
    """The median of all nodes."""


def plan_rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return the pairs of each round: every node gets three partners, or all if there are fewer.

    With an odd number of nodes, one node sits out each round, and there is one more round.
    """
    seats: list[str | None] = [*nodes, None] if len(nodes) % 2 else [*nodes]
    half = len(seats) // 2
    rounds = []
    for _ in range(min(len(seats) - 1, ROUNDS + len(nodes) % 2)):
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(one, two) for one, two in met if one is not None and two is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def plan_confirmation(pairs: Sequence[Group], again: int) -> list[tuple[str, str]]:
    """Return the pairs to measure again: each suspect with a node that is not one.

    Noise, from other load on the machine, does not repeat.

    Args:
        pairs: results so far.
        again: number of earlier repetitions; each uses a different partner.
    """
    fastest = find_fastest(pairs)
    # If half of the nodes seem slow, none is a suspect; but this may also be noise.
    slow = [node for node, best in fastest.items() if best * SLOW < max(fastest.values())]
    doubtful = [one.node for one in find_suspects(pairs)] or slow
    good = [node for node in fastest if node not in doubtful]
    turned = good[again % len(good) :] + good[: again % len(good)] if good else []
    return list(zip(doubtful, turned, strict=False))


def find_fastest(pairs: Sequence[Group]) -> dict[str, float]:
    """Return each node's bandwidth with its best partner."""
    nodes = dict.fromkeys(node for pair in pairs for node in pair.nodes)
    return {node: max(pair.bandwidth for pair in pairs if node in pair.nodes) for node in nodes}


def find_suspects(pairs: Sequence[Group]) -> list[Suspect]:
    """Return the nodes that were bad with every partner, while most were good with some.

    If half of the nodes or more are slow, it cannot be decided which half is healthy.
    """
    fastest = find_fastest(pairs)
    quickest = {
        node: min((p.latency_s for p in pairs if node in p.nodes and not p.error), default=0.0)
        for node in fastest
    }
    found = []
    usual = median_low([known for known in fastest.values() if known] or [0.0])
    usual_s = -median_low([-known for known in quickest.values() if known] or [0.0])
    for node in fastest:
        if fastest[node] * SLOW < usual:
            what = "slow" if fastest[node] else "broken"  # while others work with each other
            found.append(Suspect(node=node, what=what, best=fastest[node], usual=usual))
        elif quickest[node] > LAGGING * usual_s > 0:
            found.append(Suspect(node=node, what="lagging", best=quickest[node], usual=usual_s))
    return found
