"""The data of a run that the page receives, small enough for a thousand ranks. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from echelon.monitor.accounting import Accounts
from echelon.monitor.frame import thin
from echelon.monitor.state import RunState
from echelon.run.verdict import Verdict

RANK_FIELDS = (
    "rank",
    "node",
    "alive",
    "failed",
    "step",
    "steps",
    "data",
    "stall",
    "comm",
    "busy",
    "mem",
    "util",
)
"""Order of a rank's values."""
_NUMBERS = RANK_FIELDS[4:-1]
_SAID = 50
_STACKS = 8
"""Number of hanging ranks whose stacks are sent."""
_POINTS = 500
"""Number of points per curve; fewer if there are many curves."""
_ALL_POINTS = 20_000
MOST_CURVES = 200
_LARGEST = 1e300
"""Larger integers do not fit a float."""


def describe(state: RunState, accounts: Accounts) -> dict[str, Any]:
    """Return the parts of a run that are shown, except curves and the heat map."""
    return {
        "head": _head(state, accounts),
        "time": {"seconds": _short(accounts.seconds), "gpus": accounts.gpus},
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
                    for g in one.generations[-_SAID:]
                ],
            }
            for one in state.attempts.values()
        ],
        "nodes": [
            {
                "node": one.node,
                "name": one.name,
                "here": one.here,
                "numbers": _short(one.numbers),
                "gpus": [shorten(numbers.get("util")) for _, numbers in sorted(one.gpus.items())],
            }
            for one in state.nodes.values()
        ],
        "ranks": list(_ranks(state)),
        "verdict": _verdict(state.verdict),
        "said": state.said[-_SAID:],
    }


def _head(state: RunState, accounts: Accounts) -> dict[str, Any]:
    attempt = state.attempt
    newest = {
        name: points[-1][1] for name in ("loss", "rate") if (points := state.metrics.get(name))
    }
    return {
        "run": state.run_id,
        "phase": state.phase,
        "code": state.code,
        "step": state.step,
        "job": attempt.job_id if attempt else "",
        "began": attempt.began_s if attempt else None,
        "ended": attempt.ended_s if attempt else None,
        "effective": shorten(accounts.effective),
        "ranks": len(state.ranks),
        "failed": sum(rank.failed for rank in state.ranks.values()),
        "nodes": sum(node.here for node in state.nodes.values()),
        "restarts": state.restarts,
        "restarts_allowed": attempt.restarts if attempt else None,
        "command": state.asked.command,
        "request": state.asked.describe(),
        "limit": state.asked.limit_s,
        "newest": _short(newest),
        "fields": RANK_FIELDS,
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
            *(shorten(told.get(name)) for name in _NUMBERS),
            shorten(gpu.get("util")),
        ]


def _verdict(verdict: Verdict | None) -> Mapping[str, Any] | None:
    """Shorten a verdict: victims as rank numbers, and only some stacks."""
    if verdict is None:
        return None
    hurt = [one.rank for one in verdict.victims if one.rank is not None]
    stacks = dict(list(verdict.stacks.items())[:_STACKS])
    return {**asdict(verdict), "victims": hurt, "stacks": stacks}


def shorten(value: float | None) -> float | None:
    """Round to the digits that are shown; None for NaN and infinity, which JSON lacks."""
    if value is None or not -math.inf < value < math.inf or abs(value) >= _LARGEST:
        return None
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def _short(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: shorten(value) for name, value in values.items()}


# --- curves -------------------------------------------------------------------------------------


class Curves:
    """Metrics thinned to the points that can be seen; long ones are recomputed now and then."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[int, int, list[list[float | None]]]] = {}
        """By name: version, number of points it was made from, and the curve."""

    def feed(self, metrics: Mapping[str, Sequence[tuple[int, float]]], version: int) -> bool:
        """Update the curves; tell whether any has changed."""
        room = max(50, min(_POINTS, _ALL_POINTS // max(1, len(metrics))))
        changed = False
        for name in list(metrics)[:MOST_CURVES]:
            points = metrics[name]
            _, before, _ = self._drawn.get(name, (0, 0, []))
            # A point covers several steps: until there is one more point, nothing would change.
            if len(points) > before and (len(points) - before) * room >= before:
                self._drawn[name] = version, len(points), draw_curve(points, room)
                changed = True
        return changed

    def since(self, version: int) -> dict[str, list[list[float | None]]]:
        return {name: curve for name, (at, _, curve) in self._drawn.items() if at > version}


def draw_curve(points: Sequence[tuple[int, float]], room: int) -> list[list[float | None]]:
    """Return steps and values; steps that were repeated after a restart appear once."""
    kept: list[tuple[int, float]] = []
    for step, value in points:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    steps = thin([float(step) for step, _ in kept], room)
    values = thin([value for _, value in kept], room)
    return [[shorten(one) for one in steps], [shorten(one) for one in values]]
