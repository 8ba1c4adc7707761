"""What follows from what was measured: each node and GPU beside the median of the others. Pure."""

from collections.abc import Iterator
from statistics import median

from echelon.launch.doctor.record import Examined, Finding, Group
from echelon.launch.doctor.rounds import SLOW, find_fastest, find_suspects

_GPU_ERROR, _GPU_WARNING = 0.5, 0.8
"""Shares of the other GPUs' median below which one is bad, or odd."""


def judge_figures(examined: Examined) -> Iterator[Finding]:
    yield from _judge_pairs(examined)
    overall = examined.overall
    if overall and overall.error:
        yield Finding(
            severity="error",
            node="",
            check="all-reduce",
            message=f"over {len(overall.nodes)} nodes at once it fails: {overall.error}",
            fix="try fewer nodes, to find out from how many on",
        )
    yield from _judge_gpus(examined)


def _judge_pairs(examined: Examined) -> Iterator[Finding]:
    named = set()
    for one in find_suspects(examined.pairs):
        named.add(one.node)
        if one.what == "broken":
            why = f"all-reduce fails with every partner: {_error_of(examined, one.node)}"
        elif one.what == "slow":
            why = f"all-reduce reaches {rate(one.best)}, elsewhere {rate(one.usual)}"
        else:
            why = f"one number takes {one.best * 1e3:.1f} ms, elsewhere {one.usual * 1e3:.1f} ms"
        yield Finding(
            severity="warning" if one.what == "lagging" else "error",
            node=one.node,
            check="all-reduce",
            message=why,
            fix="leave it out; cable, switch port or link speed: ethtool, ibstat",
        )
    # Of each its best: one pair may be slow for a moment, on a machine that is busy otherwise.
    best = [known for known in find_fastest(examined.pairs).values() if known]
    if not named and len(examined.nodes) > 2 and best and min(best) * SLOW < max(best):
        yield Finding(
            severity="warning",
            node="",
            check="all-reduce",
            message=f"some nodes reach {rate(max(best))}, some {rate(min(best))}: half of them or "
            "more are slow, so which are as they should be cannot be told",
            fix="are they of different kinds, or in different parts of the network?",
        )
    for pair in examined.pairs:
        if pair.error and not named & set(pair.nodes):
            yield Finding(
                severity="error",
                node="",
                check="all-reduce",
                message=f"it fails between {' and '.join(pair.nodes)}: {pair.error}",
                fix="whether one of them is to blame, a third node would show",
            )


def _error_of(examined: Examined, node: str) -> str:
    return next(pair.error for pair in examined.pairs if node in pair.nodes and pair.error)


def _judge_gpus(examined: Examined) -> Iterator[Finding]:
    known = [(node.name, gpu) for node in examined.nodes if node.facts for gpu in node.facts.gpus]
    for what, unit, figures in (
        ("a matrix product", "TFLOP/s", {(n, g.index, g.name): g.tflops for n, g in known}),
        ("copying", "GB/s", {(n, g.index, g.name): g.memory_gbs for n, g in known}),
    ):
        measured = {key: figure for key, figure in figures.items() if figure}
        for (node, index, kind), figure in measured.items():
            others = [
                other
                for key, other in measured.items()
                if key[2] == kind and key[:2] != (node, index)
            ]
            usual = median(others or [figure])
            if figure >= usual * _GPU_WARNING:
                continue
            yield Finding(
                severity="error" if figure < usual * _GPU_ERROR else "warning",
                node=node,
                check="gpu speed",
                message=f"GPU {index}: {what} {figure:.0f} {unit}, elsewhere {usual:.0f}",
                fix="is it hot, shared or capped? nvidia-smi -q -d PERFORMANCE,POWER",
            )


def rate(bytes_per_s: float) -> str:
    """Return a bandwidth in words: `1.3 GB/s`, `24 MB/s`."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return (
        f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e7 else f"{bytes_per_s / 1e6:.1f} MB/s"
    )


def describe(group: Group) -> str:
    """Return how an all-reduce went, in words."""
    if group.error:
        return group.error
    return f"{rate(group.bandwidth)}, {group.latency_s * 1e3:.2f} ms"
