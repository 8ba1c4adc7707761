"""All-reduce between nodes: plan pairs, measure them, and find slow nodes from the results.

In every round all nodes are measured at once, each with a different partner, so a thousand nodes
take as long as four. A healthy node has a healthy partner in at least one round, and is then as
fast as the others; a bad one never is. With three rounds this holds for any two bad nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate
from statistics import median_low

from echelon.core.codec import decode
from echelon.core.frozen import frozen
from echelon.launch.doctor.probe_client import Details, ProbeClient
from echelon.launch.doctor.results import Group, Measured

ROUNDS = 3
SLOW = 3.0
"""How many times slower than the others a suspect is; noise does not cause this three times."""
LAGGING = 10.0
"""The same for the time of an all-reduce of one number."""


@frozen
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


LIMIT_S = 20.0
"""How long ranks wait for each other, before the allowance per rank."""
RANK_S = 0.1
"""Additional time per rank: each connects to all others, and a ring passes through all of them."""
LONGEST_S = 300.0
"""The longest time that ranks wait."""
_SLACK_S = 40.0
"""Allowance for importing torch again, where a worker was killed."""
_LARGEST = {"gloo": 1 << 24, "nccl": 1 << 28}
"""Bytes of the largest all-reduce."""


def limit_of(ranks: int) -> float:
    """Return how long the ranks of a group wait for each other.

    It does not depend on the size: a larger one is tried only if a smaller one was fast.
    """
    return min(LONGEST_S, LIMIT_S + RANK_S * ranks)


@frozen
class AllReduce:
    """Measures groups of nodes, and merges the answers of their ranks."""

    probes: ProbeClient
    names: Mapping[int, str]
    counts: Mapping[int, int]
    """Number of ranks of each node."""
    backend: str
    addresses: Callable[[Sequence[int]], list[str]]
    """Returns the addresses of a group's first node."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Additional variables of the ranks."""

    async def measure(self, groups: Sequence[tuple[int, ...]]) -> list[Group]:
        """Return one result per group; groups must not share nodes."""
        candidates = {group[0]: {"candidates": self.addresses(group)} for group in groups}
        opened = await self.probes.ask("open", candidates, limit_s=LIMIT_S)
        orders: dict[int, Details] = {}
        for group in groups:
            for address, port in list(opened[group[0]].get("ports", {}).items())[:1]:
                orders |= self._make_orders(group, address, port)
        ranks = [sum(self.counts[node] for node in group) for group in groups]
        longest_s = limit_of(max(ranks, default=0))
        answers = await self.probes.ask("measure", orders, limit_s=longest_s + _SLACK_S)
        closed = {"error": "cannot open a port"}
        return [
            merge_answers(
                tuple(self.names[node] for node in group),
                [answers.get(node, closed) for node in group],
                backend=self.backend,
            )
            for group in groups
        ]

    def _make_orders(self, group: Sequence[int], address: str, port: int) -> dict[int, Details]:
        counts = [self.counts[node] for node in group]
        return {
            node: {
                "order": {
                    "what": "reduce",
                    "backend": self.backend,
                    "env": dict(self.env),
                    "address": address,
                    "port": port,
                    "first_rank": first_rank,
                    "count": self.counts[node],
                    "world": sum(counts),
                    "limit_s": limit_of(sum(counts)),
                    "largest": _LARGEST[self.backend],
                }
            }
            for node, first_rank in zip(group, accumulate(counts, initial=0), strict=False)
        }


def merge_answers(names: tuple[str, ...], answers: Sequence[Details], *, backend: str) -> Group:
    """Merge the answers of a group's ranks; the slowest counts. Pure."""
    measured = [decode(Measured, answer) for answer in answers]
    ranks = [rank for node in measured for rank in node.ranks]
    errors = [
        f"{name}: {error}"
        for name, node in zip(names, measured, strict=True)
        for error in (node.error, *(rank.error for rank in node.ranks))
        if error
    ]
    group = Group(nodes=names, ranks=len(ranks), backend=backend)
    if errors:
        return replace(group, error=errors[0])
    if not all(node.ranks and all(rank.bandwidth > 0 for rank in node.ranks) for node in measured):
        return replace(group, error="a rank did not report its bandwidth")
    return replace(
        group,
        bandwidth=round(min(rank.bandwidth for rank in ranks)),
        latency_s=round(max(rank.latency_s for rank in ranks), 6),
    )
