"""Which nodes all-reduce with which, and who is slow by that. Pure.

Pairs, not halves: in every round all nodes are measured at once, each with another partner, and so
a thousand nodes take as long as four. A healthy node meets a healthy one in some round, and then is
as fast as the others are; a bad one never is. With three rounds that holds for any two bad nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from echelon.launch.doctor.record import Group

ROUNDS = 3
SLOW = 3.0
"""How many times slower than the others a node has to be; noise does not do that thrice."""
LAGGING = 10.0
"""Likewise with the time that one number takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node that is worse than the others."""

    node: str
    what: str
    """`broken`, `slow` or `lagging`."""
    best: float
    """Bytes per second, or seconds, with its best partner."""
    usual: float
    """What most nodes reach."""


def plan_rounds(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return who meets whom: everybody meets three others, or as many as there are.

    With an odd number one sits out each time, and there is one round more.
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
    """Return who is to be measured once more, and with whom: each suspect with a node that is none.

    What was noise, on a machine that is busy with something else, does not come back.

    Args:
        pairs: what was measured so far.
        again: how often that was done already; each time it is another partner.
    """
    fastest = find_fastest(pairs)
    # Where half of them seem slow, nobody is named; but that may be noise just as well.
    slow = [node for node, best in fastest.items() if best * SLOW < max(fastest.values())]
    doubtful = [one.node for one in find_suspects(pairs)] or slow
    good = [node for node in fastest if node not in doubtful]
    turned = good[again % len(good) :] + good[: again % len(good)] if good else []
    return list(zip(doubtful, turned, strict=False))


def find_fastest(pairs: Sequence[Group]) -> dict[str, float]:
    """Return what each node reaches with its best partner."""
    nodes = dict.fromkeys(node for pair in pairs for node in pair.nodes)
    return {node: max(pair.bandwidth for pair in pairs if node in pair.nodes) for node in nodes}


def find_suspects(pairs: Sequence[Group]) -> list[Suspect]:
    """Return the nodes that were bad with every partner, while most were good with some.

    Where half of them or more are slow, nobody can say which half is as it should be.
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
