"""What is asked of Ray for a run. Pure.

The controller and the process that speaks to Ray for it are two: the plan is that one's argument.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from echelon.spec.job_spec import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many agents to bring up, and what they need."""

    run: str
    """The run's folder."""
    attempt: int
    low: int
    """How many nodes there have to be, at least,"""
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


def bundle_of(request: JobSpec) -> dict[str, float]:
    """Return what each node has to give."""
    wanted = {
        "CPU": request.cpus_per_node,
        "GPU": request.gpus,
        "memory": request.mem_per_node_mib << 20,
    }
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
    fit = choose_count(replace(plan, low=0, high=len(nodes)), nodes)
    have = f"{fit} of Ray's {len(nodes)} nodes {'is' if fit == 1 else 'are'} so large"
    busy = ", and not all of them are free" if fit >= plan.low else ""
    return f"waiting for {plan.low} nodes with {amounts} each; {have}{busy}"
