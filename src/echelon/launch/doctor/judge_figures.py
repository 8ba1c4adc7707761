"""Findings about measurements: each node and GPU is compared with the others' median. Pure."""

from collections.abc import Iterator
from statistics import median

from echelon.launch.doctor.record import Examined, Finding, Group
from echelon.launch.doctor.rounds import SLOW, find_fastest, find_suspects

_GPU_ERROR, _GPU_WARNING = 0.5, 0.8
"""Fractions of the other GPUs' median below which there is an error or a warning."""


def judge_figures(examined: Examined) -> Iterator[Finding]:
    yield from _judge_pairs(examined)
    overall = examined.overall
    if overall and overall.error:
        yield Finding(
            severity="error",
            node="",
            check="all-reduce",
            message=f"all-reduce over {len(overall.nodes)} nodes fails: {overall.error}",
            fix="try fewer nodes to find the number at which it fails",
        )
    yield from _judge_gpus(examined)


def _judge_pairs(examined: Examined) -> Iterator[Finding]:
    named = set()
    for one in find_suspects(examined.pairs):
        named.add(one.node)
        if one.what == "broken":
            why = f"all-reduce fails with every partner: {_error_of(examined, one.node)}"
        elif one.what == "slow":
            why = f"all-reduce reaches {rate(one.best)}, on other nodes {rate(one.usual)}"
        else:
            why = f"all-reduce of one number takes {one.best * 1e3:.1f} ms, "
            why += f"on other nodes {one.usual * 1e3:.1f} ms"
        yield Finding(
            severity="warning" if one.what == "lagging" else "error",
            node=one.node,
            check="all-reduce",
            message=why,
            fix="exclude it; check cable, switch port and link speed: ethtool, ibstat",
        )
    # Use each node's best result: a pair may be slow for a moment on a busy machine.
    best = [known for known in find_fastest(examined.pairs).values() if known]
    if not named and len(examined.nodes) > 2 and best and min(best) * SLOW < max(best):
        yield Finding(
            severity="warning",
            node="",
            check="all-reduce",
            message=f"some nodes reach {rate(max(best))}, some {rate(min(best))}; half of them or "
            "more are slow, so no single node can be blamed",
            fix="check whether they are of different types or in different parts of the network",
        )
    for pair in examined.pairs:
        if pair.error and not named & set(pair.nodes):
            yield Finding(
                severity="error",
                node="",
                check="all-reduce",
                message=f"all-reduce between {' and '.join(pair.nodes)} fails: {pair.error}",
                fix="examine them with a third node, to see whether one of them is to blame",
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
                message=f"GPU {index}: {what} {figure:.0f} {unit}, on others {usual:.0f}",
                fix="check whether it is hot, shared or capped: nvidia-smi -q -d PERFORMANCE,POWER",
            )


def rate(bytes_per_s: float) -> str:
    """Format a bandwidth: `1.3 GB/s`, `24 MB/s`."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.1f} GB/s"
    return (
        f"{bytes_per_s / 1e6:.0f} MB/s" if bytes_per_s >= 1e7 else f"{bytes_per_s / 1e6:.1f} MB/s"
    )


def describe(group: Group) -> str:
    """Format the result of an all-reduce."""
    if group.error:
        return group.error
    return f"{rate(group.bandwidth)}, {group.latency_s * 1e3:.2f} ms"
