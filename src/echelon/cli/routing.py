"""Executes a command about a run on the machine of the run: this one, or another host."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echelon.client.manage.locate import find_site, locate
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.cli.remote import There

Elsewhere = Callable[["There"], int]
"""Executes a command whose run is on another host, and returns the exit code."""


def route(
    command: Callable[..., int | None],
    elsewhere: Elsewhere | None,
    values: Mapping[str, Any],
    line: Sequence[str],
    *,
    cluster: str,
    host: str,
    here: bool = False,
) -> int:
    """Execute a command where its run is, and return its exit code.

    Args:
        command: executes it on this machine.
        elsewhere: executes it on another machine; by default, as it was given.
        values: its parameters; see `There`.
        line: its command line; see `There`.
        cluster: the cluster profile that was given.
        host: the host that was given.
        here: whether `--runs-dir` was given: it names a directory of this machine.
    """
    if here and (cluster or host):
        raise UsageError(
            "--runs-dir names a directory of this machine, not of a host",
            hint="remove it: the runs there are in the profile's workdir, in `runs`",
        )
    sweep = "sweep" in values
    name = str(values.get("sweep" if sweep else "run", ""))
    if not name or here:
        site = find_site(cluster, host)
    else:
        site, name = locate(name, values["runs_dir"], cluster, host, sweep=sweep)
    if site is None:
        return command(**values) or 0
    from echelon.cli.remote import There, execute  # noqa: PLC0415  it loads ssh

    line = ["sweep", *line] if sweep else line
    there = There(site=site, run=name, values=values, line=line, command=command)
    return (elsewhere or execute)(there)
