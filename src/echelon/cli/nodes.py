"""`echelon nodes`: list nodes that runs avoid, and allow them again."""

import os
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from echelon.cli import console
from echelon.cli.help import CHECK
from echelon.cli.run_options import AsJson
from echelon.core.nodes import expand
from echelon.errors import NotFoundError
from echelon.run.node_record import (
    BadNode,
    NodeEvent,
    append_entries,
    bad_nodes,
    known_clusters,
    read_entries,
    record_path,
)

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=CHECK)
def nodes(
    *,
    cluster: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Show only this cluster, by its ClusterName in Slurm.",
            show_default=False,
        ),
    ] = "",
    forgive: Annotated[
        str,
        typer.Option(metavar="NODES", help="Allow these nodes again; or all.", show_default=False),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the nodes that jobs avoid, and why.

    Jobs avoid a node that failed its start check, or that made one run lose its ranks twice. They
    use it again after 7 days, or after the time in the key forgive_after.

    Example: echelon nodes --forgive node[3-4]
    """
    bad = {
        name: bad_nodes(read_entries(record_path(name, os.environ)), now_s=time.time())
        for name in _clusters(cluster)
    }
    if forgive:
        bad = _forgive(bad, forgive)
    rows = [
        [one.node, name, _date(one.since_s), _date(one.until_s), one.run, one.reason]
        for name, found in bad.items()
        for one in found.values()
    ]
    headings = ["node", "cluster", "since", "until", "run", "reason"]
    if as_json:
        console.print_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif forgive:
        for node, name, *_ in rows:
            console.print_result(f"{node} of {name} is allowed again")
    elif rows:
        console.print_table(headings, rows)
    if not rows:
        console.note("no nodes are avoided")


def _clusters(wanted: str) -> list[str]:
    """Return the clusters to show: the given one, or all that have a record."""
    known = known_clusters(os.environ)
    if not wanted:
        return known
    path = record_path(wanted, os.environ)
    if path is None or path.stem not in known:
        raise NotFoundError(
            f"no record of a cluster '{wanted}'",
            hint=f"known clusters: {', '.join(known)}"
            if known
            else "no nodes are avoided anywhere",
        )
    return [path.stem]


def _forgive(bad: dict[str, dict[str, "BadNode"]], hosts: str) -> dict[str, dict[str, "BadNode"]]:
    """Record that nodes are allowed again; return their entries from before."""
    left_out = list(dict.fromkeys(node for found in bad.values() for node in found))
    names = left_out if hosts == "all" else expand(hosts)
    if unknown := [name for name in names if name not in left_out]:
        raise NotFoundError(
            f"not avoided: {', '.join(unknown[:5])}",
            hint=f"avoided nodes: {', '.join(left_out)}" if left_out else "no nodes are avoided",
        )
    forgiven = {
        cluster: {name: found[name] for name in names if name in found}
        for cluster, found in bad.items()
    }
    for cluster, found in forgiven.items():
        path = record_path(cluster, os.environ)
        assert path is not None, "the nodes were read from this record"
        if found:
            append_entries(path, [NodeEvent(kind="forgiven", node=name) for name in found])
    return forgiven


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")
