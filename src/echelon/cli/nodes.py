"""`echelon nodes`: nodes that runs are kept away from, why, and how to have them back."""

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import CHECK
from echelon.errors import NotFoundError

if TYPE_CHECKING:
    from echelon.run.node_record import BadNode

app = typer.Typer(rich_markup_mode=None)


@app.command(rich_help_panel=CHECK)
def nodes(
    *,
    cluster: Annotated[
        str, typer.Option(help="Show one cluster only, by Slurm's name for it.", show_default=False)
    ] = "",
    forgive: Annotated[
        str,
        typer.Option(metavar="NODES", help="Use these nodes again; or: all.", show_default=False),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Output JSON.")] = False,
) -> None:
    """List the nodes that jobs avoid, and why.

    A node is left out when it failed its start check, or twice cost one run its ranks. It is used
    again after 7 days, or what the key forgive_after says.

    Example: echelon nodes --forgive node[3-4]
    """
    from echelon.run.node_record import bad_nodes, read_entries, record_path  # noqa: PLC0415

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
            console.print_result(f"{node} of {name} may be used again")
    elif rows:
        console.print_table(headings, rows)
    if not rows:
        console.note("no node is left out")


def _clusters(wanted: str) -> list[str]:
    """Return the clusters that are meant: those with a file, or the one that was named."""
    from echelon.run.node_record import known_clusters, record_path  # noqa: PLC0415

    known = known_clusters(os.environ)
    if not wanted:
        return known
    path = record_path(wanted, os.environ)
    if path is None or path.stem not in known:
        raise NotFoundError(
            f"nothing is known of a cluster '{wanted}'",
            hint=f"there are: {', '.join(known)}"
            if known
            else "nothing to do: no node is left out anywhere",
        )
    return [path.stem]


def _forgive(bad: dict[str, dict[str, "BadNode"]], hosts: str) -> dict[str, dict[str, "BadNode"]]:
    """Write down that nodes may be used again; return them as they were."""
    from echelon.core.nodes import expand  # noqa: PLC0415
    from echelon.run.node_record import Entry, append_entries, record_path  # noqa: PLC0415

    left_out = list(dict.fromkeys(node for found in bad.values() for node in found))
    names = left_out if hosts == "all" else expand(hosts)
    if unknown := [name for name in names if name not in left_out]:
        raise NotFoundError(
            f"{', '.join(unknown[:5])}: not left out, so there is nothing to forgive",
            hint=f"left out are: {', '.join(left_out)}"
            if left_out
            else "nothing to do: no node is left out",
        )
    forgiven = {
        cluster: {name: found[name] for name in names if name in found}
        for cluster, found in bad.items()
    }
    for cluster, found in forgiven.items():
        path = record_path(cluster, os.environ)
        assert path is not None, "it was read from there"
        if found:
            append_entries(path, [Entry(kind="forgiven", node=name) for name in found])
    return forgiven


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")
