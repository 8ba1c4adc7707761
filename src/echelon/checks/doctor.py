"""What the doctor found, for people and for programs. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from echelon.core.nodes import compress
from echelon.launch.doctor.judge import exclude_option
from echelon.launch.doctor.judge_figures import describe, rate
from echelon.launch.doctor.record import Examined, Finding, Node

WARNED, BROKEN = 1, 3
"""Exit codes: something should be known; something is not to be used."""
HEADINGS = ["node", "python", "torch", "import", "clock", "link", "shm", "GPUs", "best pair"]
_WIDTH = 79


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the code of the worst finding."""
    if any(one.severity == "error" for one in findings):
        return BROKEN
    return WARNED if findings else 0


def to_record(examined: Examined, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return everything, for JSON."""
    nodes = [node.name for node in examined.nodes]
    return {
        **asdict(examined),
        "findings": [asdict(one) for one in findings],
        "exclude": exclude_option(findings, nodes),
    }


def render_rows(examined: Examined) -> list[list[str]]:
    """Return a line of the table for each node; what is not known is '-'."""
    return [[cell or "-" for cell in _row(node, examined)] for node in examined.nodes]


def _row(node: Node, examined: Examined) -> list[str]:
    facts, torch, look = node.facts, node.torch, node.look
    best = max((p.bandwidth for p in examined.pairs if node.name in p.nodes), default=0.0)
    working = torch if torch and not torch.error else None
    return [
        node.name,
        look.python_version,
        working.version.partition("+")[0] if working else "",
        f"{working.import_s:.1f} s" if working else "",
        f"{facts.skew_s * 1e3:+.1f} ms" if facts else "",
        f"{facts.interface} {facts.mtu}" if facts and facts.interface else "",
        f"{look.shm_mib / 1024:.1f}G" if look.shm_mib >= 0 else "",
        str(len(facts.gpus)) if facts and facts.gpus else "",
        rate(best) if best else "",
    ]


def render_overall(examined: Examined) -> str:
    """Return how fast all nodes are together; empty where that was not measured."""
    group = examined.overall
    if group is None:
        return ""
    what = f"all-reduce over {len(group.nodes)} nodes, {group.ranks} ranks, {group.backend}"
    return f"{what}: {describe(group)}"


def render_gpus(examined: Examined) -> list[str]:
    """Return a line for each GPU that was measured."""
    return [
        f"{node.name} GPU {gpu.index}: {gpu.tflops:.0f} TFLOP/s, {gpu.memory_gbs:.0f} GB/s"
        for node in examined.nodes
        for gpu in (node.facts.gpus if node.facts else ())
        if gpu.tflops
    ]


def render_findings(findings: Sequence[Finding]) -> str:
    """Return the findings, nodes with the same one together."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for one in findings:
        key = (one.severity, one.check, one.message, one.fix)
        found.setdefault(key, []).append(one.node)
    lines = []
    for (severity, check, message, fix), nodes in found.items():
        who = compress([node for node in nodes if node])
        told = f"{severity}  {who + ': ' if who else ''}{message} [{check}]"
        lines += textwrap.wrap(told, _WIDTH, subsequent_indent="    ", break_long_words=False)
        lines += textwrap.wrap(
            f"fix: {fix}", _WIDTH, initial_indent="    ", subsequent_indent="    "
        )
    return "\n".join(lines)


def render_conclusion(examined: Examined, findings: Sequence[Finding]) -> str:
    """Return what it comes to, in a line or two."""
    nodes = [node.name for node in examined.nodes]
    if not findings:
        count = f"{len(nodes)} nodes are" if len(nodes) > 1 else f"{nodes[0]} is"
        return f"{count} well ({examined.seconds:.0f} s)"
    option = exclude_option(findings, nodes)
    return f"to leave out what is not to be used: {option}" if option else ""
