"""What the web page is sent of a run: plain data, small enough for a thousand ranks. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from echelon.core.series import Sample
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
            *(_short(told.get(name)) for name in ("step", "steps", "data", "stall", "mem")),
            _short(gpu.get("util")),
        ]


def _short(value: float | None) -> float | None:
    """Send no more digits than are seen."""
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def _curve(points: Sequence[tuple[int, float]]) -> list[list[float]]:
    """Return steps and values, of long curves as many as can be seen."""
    steps = thin([float(step) for step, _ in points], _POINTS)
    values = thin([value for _, value in points], _POINTS)
    return [steps, values]


def heat(
    history: Mapping[int, Sequence[Sample]], ranks: int, what: str, *, columns: int
) -> dict[str, Any]:
    """Return a rank's value over time, a row for each rank: a straggler is a stripe.

    Args:
        history: samples of each node.
        ranks: how many there are.
        what: `steps`, `data`, `util` of the rank's GPU, …
        columns: how many moments.
    """
    times = sorted({round(sample.time_s) for samples in history.values() for sample in samples})
    times = times[-columns:]
    places = {at_s: place for place, at_s in enumerate(times)}
    rows: list[list[float | None]] = [[None] * len(times) for _ in range(ranks)]
    for samples in history.values():
        for sample in samples:
            place = places.get(round(sample.time_s))
            if place is not None:
                _fill(rows, place, sample, what)
    return {"times": times, "rows": rows}


def _fill(rows: list[list[float | None]], place: int, sample: Sample, what: str) -> None:
    for name in sample.lasts:
        owner, _, field = name.partition(".")
        if field != "step" or not owner.startswith("rank"):
            continue
        rank = int(owner[4:])
        if what == "util":
            gpu = sample.lasts.get(f"{owner}.gpu")
            value = sample.means.get(f"gpu{int(gpu)}.util") if gpu is not None else None
        else:
            value = sample.means.get(f"{owner}.{what}")
        if rank < len(rows):
            rows[rank][place] = _short(value)
