"""What the web page is sent of a run: plain data, small enough for a thousand ranks. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from echelon.monitor.accounting import Accounts
from echelon.monitor.frame import thin
from echelon.monitor.state import RunState

RANK_FIELDS = ("rank", "node", "alive", "failed", "step", "steps", "data", "stall", "mem", "util")
"""In which order a rank's values are sent."""
_POINTS = 500
"""How many points of a curve are sent."""


def describe(state: RunState, accounts: Accounts) -> dict[str, Any]:
    """Return what is shown of a run now."""
    return {
        "run": state.run_id,
        "phase": state.phase,
        "step": state.step,
        "effective": accounts.effective,
        "gpus": accounts.gpus,
        "seconds": accounts.seconds,
        "attempts": [
            {
                "number": one.number,
                "job": one.job_id,
                "began": one.began_s,
                "ended": one.ended_s,
                "outcome": one.outcome,
                "generations": [
                    {
                        "number": g.number,
                        "began": g.began_s,
                        "ended": g.ended_s,
                        "ranks": g.ranks,
                        "nodes": g.nodes,
                        "why": g.why,
                    }
                    for g in one.generations
                ],
            }
            for one in state.attempts.values()
        ],
        "nodes": [
            {
                "node": one.node,
                "name": one.name,
                "here": one.here,
                "numbers": one.numbers,
                "gpus": {str(index): numbers for index, numbers in one.gpus.items()},
            }
            for one in state.nodes.values()
        ],
        "fields": RANK_FIELDS,
        "ranks": list(_ranks(state)),
        "metrics": {name: _curve(points) for name, points in state.metrics.items()},
        "verdict": state.verdict,
        "said": state.said[-50:],
    }


def _ranks(state: RunState) -> Iterable[list[Any]]:
    for rank in state.ranks.values():
        told = rank.numbers
        node = state.nodes.get(rank.node)
        gpu = node.gpus.get(int(told.get("gpu", -1)), {}) if node else {}
        yield [
            rank.rank,
            rank.node,
            rank.alive,
            rank.failed,
            *(shorten(told.get(name)) for name in ("step", "steps", "data", "stall", "mem")),
            shorten(gpu.get("util")),
        ]


def shorten(value: float | None) -> float | None:
    """Send no more digits than are seen."""
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def _curve(points: Sequence[tuple[int, float]]) -> list[list[float]]:
    """Return steps and values, of long curves as many as can be seen."""
    steps = thin([float(step) for step, _ in points], _POINTS)
    values = thin([value for _, value in points], _POINTS)
    return [steps, values]
