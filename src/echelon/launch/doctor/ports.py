"""Choose which nodes try whose ports, and which node is to blame for closed ones. Pure.

With many nodes, each tries a few. Every node then tries at least three others and is tried by at
least three, so a node with closed ports, or one that reaches no other, can be told from its
neighbours.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from echelon.launch.doctor.results import Finding, Node

FEW = 16
"""Up to this many nodes, each tries all others."""


def choose_peers(nodes: Sequence[int], node: int) -> list[int]:
    """Return the nodes to try: all others or, with many, the next two, a distant one and the first.

    All nodes connect to the first; the distant one is likely behind another switch.
    """
    if len(nodes) <= FEW:
        return [other for other in nodes if other != node]
    place, count = nodes.index(node), len(nodes)
    tried = [nodes[(place + step) % count] for step in (1, 2, count // 2)]
    return [other for other in dict.fromkeys([*tried, nodes[0]]) if other != node]


def judge_ports(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Return findings: nodes with closed ports, nodes that reach no other, and single pairs."""
    tried, failed = Counter[str](), Counter[str]()
    for node in nodes:
        tried.update(node.tried)
        failed.update(node.unreached)
    closed = {name for name in failed if failed[name] == tried[name] and tried[name] > 1}
    for name in sorted(closed):
        why = "no other node reaches its ports"
        yield _error(name, why, "check the node's firewall and cable: iptables -L, ip -s link")
    for node in nodes:
        if node.name in closed:
            continue
        open_to = [name for name in node.tried if name not in closed]
        missed = [name for name in node.unreached if name not in closed]
        if len(missed) == len(open_to) > 1:
            yield _error(
                node.name,
                "cannot reach the ports of any other node",
                "check the node's firewall and cable: iptables -L, ip -s link",
            )
        elif missed:
            why = f"{node.name} cannot reach ports of {name_some(missed)}"
            yield _error("", why, "check the firewall and routes between them")


def name_some(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _error(node: str, message: str, fix: str) -> Finding:
    return Finding(severity="error", node=node, check="ports", message=message, fix=fix)
