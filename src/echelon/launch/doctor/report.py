"""Render the doctor's results as text and JSON. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from echelon.core.nodes import compress
from echelon.core.terminal_escape import in_one_line
from echelon.core.units import format_bytes
from echelon.launch.doctor.findings import rate
from echelon.launch.doctor.gpus import own_gpus
from echelon.launch.doctor.results import Examined, Finding, Node, Torch

WARNED, BROKEN = 1, 3
"""Exit codes: only warnings; at least one error."""
_WIDTH = 79
_INDENT = "    "
_LONGEST = 200
"""Characters shown of a message; JSON has all of it."""


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the exit code for the most severe finding."""
    if any(one.severity == "error" for one in findings):
        return BROKEN
    return WARNED if findings else 0


def to_record(examined: Examined) -> dict[str, Any]:
    """Return all results, for JSON."""
    return {**asdict(examined), "exclude": exclude_option(examined)}


def render_table(examined: Examined) -> tuple[list[str], list[list[str]]]:
    """Return headings and a row for each node; '-' means unknown, empty columns are left out."""
    rows = [_describe_node(node, examined) for node in examined.nodes]
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    return headings, [[row[heading] or "-" for heading in headings] for row in rows]


def _describe_node(node: Node, examined: Examined) -> dict[str, str]:
    look, facts, torch = node.look, node.facts, node.torch or Torch(error="not asked")
    best = max((pair.bandwidth for pair in examined.pairs if node.name in pair.nodes), default=0.0)
    return {
        "node": node.name,
        "python": look.python_version,
        "torch": torch.version.partition("+")[0],
        "import": "" if torch.error else f"{torch.import_s:.1f}s",
        "clock": _render_skew(facts.skew_s) if facts else "",
        "link": f"{facts.interface} {facts.mtu}" if facts and facts.interface else "",
        "shm": format_bytes(look.shm_mib << 20) if look.shm_mib >= 0 else "",
        "GPUs": _count_gpus(node) if facts and facts.gpus else "",
        "pair": rate(best) if best else "",
    }


def _count_gpus(node: Node) -> str:
    ours, every = len(own_gpus(node)[0]), len(node.facts.gpus if node.facts else ())
    return str(every) if ours == every else f"{ours} of {every}"


def _render_skew(seconds: float) -> str:
    return f"{seconds * 1e3:+.0f}ms" if abs(seconds) < 1 else f"{seconds:+.0f}s"


def render_summary(examined: Examined) -> list[str]:
    """Return what follows the table: figures, findings, and the conclusion."""
    parts = [render_overall(examined), *render_gpus(examined)]
    parts += [render_findings(examined.findings), render_conclusion(examined)]
    return [part for part in parts if part]


def render_overall(examined: Examined) -> str:
    """Return the all-reduce figures over all nodes; empty if they were not measured."""
    group = examined.overall
    if group is None:
        return ""
    what = f"all-reduce over {len(group.nodes)} nodes, {group.ranks} ranks, {group.backend}"
    figures = f"{rate(group.bandwidth)}, {group.latency_s * 1e3:.2f} ms"
    return f"{what}: {group.error or figures}"


def render_gpus(examined: Examined) -> list[str]:
    """Return a line for each GPU that was measured."""
    return [
        f"{node.name} GPU {gpu.index}: {gpu.tflops:.0f} TFLOP/s, {gpu.memory_gbs:.0f} GB/s"
        for node in examined.nodes
        for gpu in (node.facts.gpus if node.facts else ())
        if gpu.tflops
    ]


def render_findings(findings: Sequence[Finding]) -> str:
    """Return the findings; nodes with the same finding share one entry."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for one in findings:
        key = (one.severity, one.check, one.message, one.fix)
        found.setdefault(key, []).append(one.node)
    lines = []
    for (severity, check, message, fix), nodes in found.items():
        who = compress([node for node in nodes if node])
        text = f"{severity}  {who + ': ' if who else ''}{_cut(in_one_line(message))} [{check}]"
        lines += [*_wrap(text, first=""), *_wrap(f"fix: {fix}", first=_INDENT)]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"


def _wrap(text: str, *, first: str) -> list[str]:
    # Keep paths and options in one piece, so that they can be copied.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def render_conclusion(examined: Examined) -> str:
    """Return the conclusion: no problems, or the option that excludes bad nodes."""
    nodes = [node.name for node in examined.nodes]
    if not examined.findings:
        what = f"{len(nodes)} nodes" if len(nodes) > 1 else nodes[0]
        return f"no problems found on {what} ({examined.seconds:.0f} s)"
    option = exclude_option(examined)
    return f"to exclude the nodes with errors: {option}" if option else ""


def exclude_option(examined: Examined) -> str:
    """Return the option that excludes bad nodes; empty if none or all of them are bad."""
    bad = {one.node for one in examined.findings if one.severity == "error"}
    named = [node.name for node in examined.nodes if node.name in bad]
    return f"--exclude={compress(named)}" if named and len(named) < len(examined.nodes) else ""
