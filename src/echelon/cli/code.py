"""Commands about the code of runs: compare it, and execute it again."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from echelon.cli import console
from echelon.cli.announcement import announce_run
from echelon.cli.completion import complete_run
from echelon.cli.following import follow_run, follow_to_the_end
from echelon.cli.help import LOOK, START, SectionedCommand
from echelon.cli.options import takes_changes
from echelon.cli.remote import There, execute, rerun_there
from echelon.cli.run_options import AsJson, Follow, Run, RunsDir, Trust, Wait, on_host
from echelon.client.code.code_diff import (
    Side,
    compare,
    read_project,
    read_run,
    render_diff,
)
from echelon.client.code.code_listing import find_root
from echelon.client.manage.clusters import cluster_of
from echelon.client.manage.relocation import own_output
from echelon.client.remote.host_files import fetched
from echelon.client.remote.workdir import hold_workdir
from echelon.client.submit.hosted import find_submitted
from echelon.client.submit.pipeline import check_again, prepare, submit
from echelon.client.submit.requests import change_request
from echelon.client.submit.target import choose_cluster
from echelon.client.submit.trust import read_script
from echelon.core.jobs import LOCAL, describe_job
from echelon.core.shell import LocalShell
from echelon.run.attempts import attempts
from echelon.run.directory import RUNS, RunDir
from echelon.run.listing import find_run
from echelon.run.request import read_code, read_layer
from echelon.spec.job_spec import JobSpec

app = typer.Typer(rich_markup_mode=None)


def diff_there(there: There) -> int:
    """Compare the code of a run on another host.

    The comparison with another run is made there, and with the project on this machine.
    """
    if there.values["other"] != ".":
        return execute(there)
    with fetched(there.site, there.run, ["spec.toml", "code.json", "code"]) as runs:
        found = find_run(runs, "last")
        root, _ = find_root(Path.cwd(), None, LocalShell())
        new = read_project(found, LocalShell(), root)
        options = {name: there.values[name] for name in ("names", "as_json")}
        _print_changes(read_run(found), new, **options)
    return 0


@app.command(rich_help_panel=LOOK)
@on_host(diff_there)
def diff(
    run: Run = "last",
    other: Annotated[
        str,
        typer.Argument(
            help="Another run, or . for the project as it is now.", autocompletion=complete_run
        ),
    ] = ".",
    *,
    runs_dir: RunsDir = RUNS,
    names: Annotated[bool, typer.Option("--name-only", help="List only the files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a run's code with another run's, or with the project.

    Example: echelon diff last
    """
    found = find_run(runs_dir, run)
    now = other == "."
    new = read_project(found, LocalShell()) if now else read_run(find_run(runs_dir, other))
    _print_changes(read_run(found), new, names=names, as_json=as_json)


def _print_changes(old: Side, new: Side, *, names: bool, as_json: bool) -> None:
    changes = compare(old, new)
    if as_json:
        console.print_json([{"path": path, "change": one} for path, one in changes.items()])
    elif names:
        console.print_table(["", ""], [[path, change] for path, change in changes.items()])
    elif changes:
        console.print_file("\n".join(render_diff(old, new)))
    if not changes and not as_json:
        console.note(f"no differences between {old.name} and {new.name}")


@app.command(cls=SectionedCommand, rich_help_panel=START)
@on_host(rerun_there)
@takes_changes
def rerun(
    *,
    run: Run = "last",
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="New arguments of the script."),
    ] = None,
    changes: Mapping[str, Any],
    runs_dir: RunsDir = RUNS,
    wait: Wait = False,
    follow: Follow = False,
    trust: Trust = False,
    as_json: AsJson = False,
    new_id: Annotated[str, typer.Option("--new-id", metavar="ID", hidden=True)] = "",
) -> None:
    """Repeat a run with the same code and request, or with changes.

    This starts a new run. With --snapshot, it executes a copy of the project as it is now. A run on
    this machine runs in the foreground.

    Example: echelon rerun last --nodes 4 -- --lr 0.2
    """
    found = find_run(runs_dir, run)
    read_script(found, os.environ, trust=trust)
    given = {**changes, "args": args or None}
    spec = _without_output(found, change_request(read_layer(found), given).spec)
    same_code = changes.get("snapshot") is None and read_code(found) is not None
    here = any(one.job_id.startswith(LOCAL) for one in attempts(found))
    cluster = choose_cluster("local", runs_dir, tied=True) if here else cluster_of(found)

    checked = check_again(found, spec, cluster, same_code=same_code, run_id=new_id)
    # After a lost connection, the same call is repeated while the first one may still be running.
    with hold_workdir(Path.cwd()) if new_id else contextlib.nullcontext():
        if new_id and (known := find_submitted(runs_dir / new_id)):
            console.print_json(known)
            return
        started = submit(prepare(checked))
    if here:
        where = describe_job(started.job_id)
        console.note(f"{started.run.run_id}: running {spec.script} {where}")
        raise typer.Exit(follow_to_the_end(started.run, cluster))
    announce_run(started.run.run_id, started.job_id, started.run.path, as_json=as_json)
    if wait or follow:
        raise typer.Exit(follow_run(started.run, cluster, show=follow, resubmit=True))


def _without_output(run: RunDir, spec: JobSpec) -> JobSpec:
    """Remove the output file from a request unless the user named it: the new run has its own."""
    return replace(spec, output="") if spec.output == own_output(run) else spec
