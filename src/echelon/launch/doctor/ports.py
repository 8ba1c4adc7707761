"""Who tries whose ports, and who is to blame for those that are closed. Pure.

Of many nodes each tries a few. Every node is then tried by three others at least, and tries three:
so one whose ports are closed, or that gets nowhere, is told from a neighbour with that fault.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from echelon.launch.doctor.record import Finding, Node

FEW = 16
"""Up to so many nodes each tries each other."""


def choose_peers(nodes: Sequence[int], node: int) -> list[int]:
    """Return whom a node tries: all others, or of many the next two, one far away and the first.

    The first is where all nodes meet; one far away is behind another switch.
    """
    if len(nodes) <= FEW:
        return [other for other in nodes if other != node]
    place, count = nodes.index(node), len(nodes)
    tried = [nodes[(place + step) % count] for step in (1, 2, count // 2)]
    return [other for other in dict.fromkeys([*tried, nodes[0]]) if other != node]


def judge_ports(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Return the nodes whose ports nobody reaches, those that reach nobody, and pairs."""
    tried, failed = Counter[str](), Counter[str]()
    for node in nodes:
        tried.update(node.tried)
        failed.update(node.unreached)
    closed = {name for name in failed if failed[name] == tried[name] and tried[name] > 1}
    for name in sorted(closed):
        why = "no other node reaches its ports"
        yield _error(name, why, "a firewall there, or a cable: iptables -L, ip -s link")
    for node in nodes:
        if node.name in closed:
            continue
        open_to = [name for name in node.tried if name not in closed]
        missed = [name for name in node.unreached if name not in closed]
        if len(missed) == len(open_to) > 1:
            yield _error(
                node.name,
                "it reaches the ports of no other node",
                "a firewall there, or a cable",
            )
        elif missed:
            why = f"{node.name} does not reach ports of {name_some(missed)}"
            yield _error("", why, "a firewall, or a route, between them")


def name_some(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _error(node: str, message: str, fix: str) -> Finding:
    return Finding(severity="error", node=node, check="ports", message=message, fix=fix)
