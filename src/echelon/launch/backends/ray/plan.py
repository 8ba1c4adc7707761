"""What a run asks of Ray: the argument of the driver. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from echelon.core.frozen import frozen
from echelon.spec.job_spec import JobSpec


@frozen
class DriverPlan:
    """Number of agents, and what they need."""

    run: str
    """The run directory."""
    attempt: int
    low: int
    """Minimum number of nodes."""
    high: int
    """Maximum number of nodes."""
    bundle: Mapping[str, float]
    """Resources of each node, in Ray's terms."""
    argv: Sequence[str]
    """The agent's command."""

    @property
    def group(self) -> str:
        """Name of the placement group."""
        return f"{Path(self.run).name}-{self.attempt}"

    @property
    def folder(self) -> Path:
        return Path(self.run, "attempts", str(self.attempt))

    def render(self) -> str:
        return json.dumps(asdict(self))


def parse_plan(text: str) -> DriverPlan:
    return DriverPlan(**json.loads(text))


def bundle_of(request: JobSpec) -> dict[str, float]:
    """Return the resources that each node has to provide."""
    wanted = {
        "CPU": request.cpus_per_node,
        "GPU": request.gpus,
        "memory": request.mem_per_node_mib << 20,
    }
    return {name: float(amount) for name, amount in wanted.items() if amount}


def choose_count(plan: DriverPlan, free: Sequence[Mapping[str, float]]) -> int:
    """Return the number of nodes to ask for: all that are free now, or the minimum.

    Args:
        plan: what is wanted.
        free: free resources of each live node.
    """
    fit = sum(
        all(node.get(name, 0.0) >= amount for name, amount in plan.bundle.items()) for node in free
    )
    return min(plan.high, max(plan.low, fit))


def describe_wait(plan: DriverPlan, nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe what the run waits for.

    Args:
        plan: what is wanted.
        nodes: total resources of each live node.
    """
    amounts = ", ".join(f"{name} {amount:g}" for name, amount in plan.bundle.items())
    fit = choose_count(replace(plan, low=0, high=len(nodes)), nodes)
    have = f"{fit} of {len(nodes)} nodes in the Ray cluster {'has' if fit == 1 else 'have'} that"
    busy = ", but not all are free" if fit >= plan.low else ""
    return f"waiting for {plan.low} nodes with {amounts} each; {have}{busy}"
