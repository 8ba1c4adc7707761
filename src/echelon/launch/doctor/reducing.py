"""All-reduce over groups of nodes, several groups at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from echelon.launch.doctor.answers import read_ranks
from echelon.launch.doctor.asking import Questioner, Said
from echelon.launch.doctor.record import Group

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


class Reducing:
    """Measures groups of nodes, and merges the answers of their ranks."""

    def __init__(
        self,
        asking: Questioner,
        *,
        names: Mapping[int, str],
        counts: Mapping[int, int],
        backend: str,
        addresses: Callable[[Sequence[int]], list[str]],
    ) -> None:
        self._asking, self._names, self._counts = asking, names, counts
        self._backend, self._addresses = backend, addresses

    async def measure(self, groups: Sequence[tuple[int, ...]]) -> list[Group]:
        """Return one result per group; groups must not share nodes."""
        doors = {group: self._addresses(group) for group in groups}
        opened = await self._asking.ask(
            {group[0]: ("open", {"addresses": found}) for group, found in doors.items()},
            limit_s=LIMIT_S,
        )
        questions: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for group in groups:
            ports = opened[group[0]].found.get("ports", {})
            for address, port in list(ports.items())[:1]:
                questions |= self._orders(group, address, port)
        longest_s = limit_of(max(map(self._count_ranks, groups), default=0))
        said = await self._asking.ask(questions, limit_s=longest_s + _SLACK_S)
        closed = Said(error="cannot open a port")
        return [
            merge_answers(
                tuple(self._names[node] for node in group),
                [said.get(node, closed) for node in group],
                backend=self._backend,
            )
            for group in groups
        ]

    def _count_ranks(self, group: Sequence[int]) -> int:
        return sum(self._counts[node] for node in group)

    def _orders(
        self, group: Sequence[int], address: str, port: int
    ) -> dict[int, tuple[str, Mapping[str, Any]]]:
        world = self._count_ranks(group)
        first = 0
        orders: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for node in group:
            order = {
                "what": "reduce",
                "backend": self._backend,
                "address": address,
                "port": port,
                "first_rank": first,
                "count": self._counts[node],
                "world": world,
                "limit_s": limit_of(world),
                "largest": _LARGEST[self._backend],
            }
            orders[node] = ("measure", order)
            first += self._counts[node]
        return orders


def merge_answers(names: tuple[str, ...], answers: Sequence[Said], *, backend: str) -> Group:
    """Merge the answers of a group's ranks; the slowest counts. Pure."""
    ranks: list[Mapping[str, Any]] = []
    for name, answer in zip(names, answers, strict=True):
        error = answer.error or str(answer.found.get("error", ""))
        if error:
            ranks.append({"error": f"{name}: {error}"})
        ranks += [
            {"error": f"{name}: {rank['error']}"} if "error" in rank else rank
            for rank in read_ranks(answer.found, "bandwidth", "latency_s")
        ]
    errors = [str(rank["error"]) for rank in ranks if "error" in rank]
    if errors or not ranks:
        said = errors[0] if errors else "no rank answered"
        return Group(nodes=names, ranks=len(ranks), backend=backend, error=said)
    return Group(
        nodes=names,
        ranks=len(ranks),
        backend=backend,
        bandwidth=round(min(rank["bandwidth"] for rank in ranks)),
        latency_s=round(max(rank["latency_s"] for rank in ranks), 6),
    )
