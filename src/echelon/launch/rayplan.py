"""What a step on Ray is asked for, and what it tells of its nodes. Pure.

The controller and the process that speaks to Ray for it are two: the plan goes one way as an
argument, and what became of it comes back as a file in the attempt's folder.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from echelon.launch.request import LaunchRequest

PREFIX = "ray: "
"""Begins a line of the step's log that says why agents did not come."""
NODES = "nodes.json"
"""The file, in the attempt's folder."""
CANCELLED = "cancelled"
"""Another one there: the user wants the end at once, which no signal of Ray's says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which agents to bring up, and what they need."""

    run: str
    """The run's folder."""
    attempt: int
    nodes: Sequence[int]
    """The places to fill: all of them, or one whose agent was lost."""
    low: int
    """How many there have to be, at least,"""
    high: int
    """and at most."""
    bundle: Mapping[str, float]
    """What each node has to give, in Ray's words."""
    argv: Sequence[str]
    """The agent."""

    @property
    def group(self) -> str:
        """The name of what Ray keeps for us."""
        return f"{Path(self.run).name}-{self.attempt}"

    @property
    def folder(self) -> Path:
        return Path(self.run, "attempts", str(self.attempt))

    def render(self) -> str:
        return json.dumps(asdict(self))


def parse_plan(text: str) -> Plan:
    return Plan(**json.loads(text))


def bundle_of(request: LaunchRequest) -> dict[str, float]:
    """Return what each node has to give."""
    wanted = {"CPU": request.cpus, "GPU": request.gpus, "memory": request.mem_mib << 20}
    return {name: float(amount) for name, amount in wanted.items() if amount}


def choose_count(plan: Plan, free: Sequence[Mapping[str, float]]) -> int:
    """Return how many nodes to ask for: as many as are free now, or the fewest that will do.

    Args:
        plan: what is wanted.
        free: what each living node has left.
    """
    fit = sum(
        all(node.get(name, 0.0) >= amount for name, amount in plan.bundle.items()) for node in free
    )
    return min(plan.high, max(plan.low, fit))


def describe_wait(plan: Plan, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return what is waited for, in words.

    Args:
        plan: what is wanted.
        nodes: what each living node has in all.
    """
    amounts = ", ".join(f"{name} {amount:g}" for name, amount in plan.bundle.items())
    fit = choose_count(Plan(**{**asdict(plan), "low": 0, "high": len(nodes)}), nodes)
    return f"waiting for {plan.low} nodes with {amounts} each; {fit} of {len(nodes)} are so large"


# --- what is told -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node of Ray's that has one of our places."""

    id: str
    name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How it is with our nodes, by Ray."""

    pid: int
    """The step that says so: as long as it lives, it holds."""
    places: Mapping[int, Place]
    alive: frozenset[str]
    """The ids of all nodes that live, ours or not."""

    def render(self) -> str:
        places = {str(node): asdict(place) for node, place in self.places.items()}
        record = {"pid": self.pid, "places": places, "alive": sorted(self.alive)}
        return json.dumps(record) + "\n"

    def names(self, *, living: bool = True) -> list[str]:
        """Return what our nodes are called, in their order."""
        places = [self.places[node] for node in sorted(self.places)]
        return [place.name for place in places if not living or place.id in self.alive]


def read_standing(folder: Path) -> Standing | None:
    """Return what was last told in an attempt's folder; None before anything was."""
    try:
        record = json.loads((folder / NODES).read_text())
        return Standing(
            pid=int(record["pid"]),
            places={int(node): Place(**place) for node, place in record["places"].items()},
            alive=frozenset(record["alive"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_current(standing: Standing) -> bool:
    """Tell whether whoever said so is still there to say otherwise."""
    with suppress(OSError):
        os.kill(standing.pid, 0)
        return True
    return False


def name_places(found: Mapping[int, Mapping[str, Any]]) -> dict[int, Place]:
    """Name nodes as their users do; several on one host, as in tests, are told apart.

    Args:
        found: our places, and what Ray says of the node of each.
    """
    plain = {}
    for node, entry in found.items():
        own, address = str(entry.get("NodeName", "")), str(entry["NodeManagerAddress"])
        plain[node] = own if own and own != address else str(entry["NodeManagerHostname"])
    often = Counter(plain.values())
    return {
        node: Place(
            id=str(entry["NodeID"]),
            name=plain[node] if often[plain[node]] == 1 else f"{plain[node]}-{entry['NodeID'][:6]}",
            address=str(entry["NodeManagerAddress"]),
        )
        for node, entry in found.items()
    }
