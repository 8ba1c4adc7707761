"""Commands that start, stop and show runs, on this machine or a cluster."""

import inspect
import os
from typing import Annotated, Any

import typer

from echelon.cli import console, quick, run_commands
from echelon.cli.announcement import announce_run
from echelon.cli.following import follow_run, follow_to_the_end
from echelon.cli.help import LOOK, START
from echelon.cli.options import UNTIL_SCRIPT, RequestCommand, takes_request
from echelon.cli.remote import resume_there, submit_there
from echelon.cli.run_options import (
    Address,
    AsJson,
    Follow,
    NewAddress,
    On,
    Run,
    RunsDir,
    Trust,
    Wait,
    goes_to_host,
    on_host,
    with_parameters,
)
from echelon.cli.tasks import submit_tasks
from echelon.client.manage.clusters import Places
from echelon.client.manage.relocation import settle_run
from echelon.client.manage.run_status import current_job
from echelon.client.submit import pipeline
from echelon.client.submit.pipeline import remember
from echelon.client.submit.target import Target, choose_cluster
from echelon.client.submit.trust import read_script
from echelon.clusters.base import queue_attempt
from echelon.clusters.local import describe_nodes
from echelon.clusters.slurm.styles import render_script
from echelon.core.jobs import LOCAL, describe_job
from echelon.core.slurm import scrub
from echelon.errors import ConflictError, UsageError
from echelon.run.directory import RUNS
from echelon.spec.merging import Merged

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=RequestCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
@takes_request
def submit(
    *,
    request: Merged,
    runs_dir: RunsDir = RUNS,
    on: On = "slurm",
    address: Address = "",
    wait: Wait = False,
    follow: Follow = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the request and print the script; queue nothing."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a request, queue it and print the run id.

    Example: echelon submit --nodes 2 --gpus 4 --time 2h train.py --lr 0.1
    """
    wanted = pipeline.Request(
        merged=request,
        target=Target(on=on, runs=runs_dir, address=address),
        lints=True,
        takes_array=True,
    )
    if goes_to_host(request, on, runs_dir):
        raise typer.Exit(
            submit_there(wanted, wait=wait, show=follow, dry_run=dry_run, as_json=as_json)
        )
    checked = pipeline.check(wanted)
    if dry_run:
        console.print_file(render_script(checked.spec, conda_exe=os.environ.get("CONDA_EXE", "")))
        return
    prepared = pipeline.prepare(checked)
    if prepared.table:
        raise typer.Exit(submit_tasks(prepared, wait=wait, as_json=as_json))
    started = pipeline.submit(prepared)
    announce_run(started.run.run_id, started.job_id, started.run.path, as_json=as_json)
    if wait or follow:
        code = follow_run(started.run, started.cluster, show=follow, resubmit=True)
        raise typer.Exit(code)


@app.command(cls=RequestCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
@takes_request
def run(
    *, request: Merged, runs_dir: RunsDir = RUNS, on: On = "auto", address: Address = ""
) -> None:
    """Run a script now, in the foreground.

    Inside an allocation it uses all nodes, or the first N with --nodes N; otherwise processes on
    this machine. With --on slurm or --on ray it submits a job that stops when this command does.

    Example: echelon run --procs 4 train.py --lr 0.1
    """
    if request.host and on == "slurm":
        raise UsageError(
            f"a run on {request.host} cannot belong to this command",
            hint="submit it, and follow its output: echelon submit --follow",
        )
    checked = pipeline.check(
        pipeline.Request(
            merged=request,
            target=Target(on=on, runs=runs_dir, address=address, tied=True),
            command="run",
            environ=scrub(os.environ) if on == "local" else os.environ,
        )
    )
    started = pipeline.submit(pipeline.prepare(checked))
    queued = on in ("slurm", "ray")
    where = describe_job(started.job_id) if queued else describe_nodes(checked.environ)
    console.note(f"{started.run.run_id}: running {checked.spec.script} {where}")
    raise typer.Exit(follow_to_the_end(started.run, started.cluster))


@app.command(rich_help_panel=START)
@on_host(resume_there)
def resume(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    address: NewAddress = "",
    wait: Wait = False,
    follow: Follow = False,
    trust: Trust = False,
) -> None:
    """Resume a run that was stopped or has failed.

    The request is the same, and training continues from the last checkpoint. A run on this machine
    resumes in the foreground. A run directory that someone else created, or that was changed after
    it was submitted, is executed only with --trust.

    Example: echelon resume last --follow
    """
    found, cluster = run_commands.find_with_job(runs_dir, run, address)
    # With a new address, the run may still be active at the old one.
    job = Places().job(found) if address else current_job(found, cluster)
    if not job.over:
        raise ConflictError(
            f"the run '{found.run_id}' has not ended: it is {job.state} {describe_job(job.id)}",
            hint=f"follow its output: echelon logs -f {found.run_id}",
        )
    if job.state == "COMPLETED":
        raise ConflictError(
            f"the run '{found.run_id}' is complete, so there is nothing to resume",
            hint="start a new run: echelon submit",
        )
    here = job.id.startswith(LOCAL)
    if here:
        cluster = choose_cluster("local", runs_dir, tied=True)
    script = read_script(found, os.environ, trust=trust)
    script, home = settle_run(found, script)
    if home is not None:
        console.note(f"{found.run_id} was moved from {home}; updated the paths in its files")
    if trust or home is not None:
        remember(found, script)
    attempt = queue_attempt(found, cluster, os.environ, script)
    console.note(f"resumed {found.run_id} {describe_job(attempt.job_id)}")
    if here:
        raise typer.Exit(follow_to_the_end(found, cluster))
    if wait or follow:
        raise typer.Exit(follow_run(found, cluster, show=follow, resubmit=True))


# --- commands that also run without this library ----------------------------------------------


def _add_quick(name: str, table: quick.Options) -> None:
    """Add a command of `quick.COMMANDS`, with the options in that table."""

    def execute(**values: Any) -> int | None:
        code: int | None = getattr(run_commands, name)(**values)
        return code

    place: dict[str, tuple[Any, Any]] = {"runs_dir": (RunsDir, RUNS)}
    if table.run is not None:
        place = {"run": (Run, table.run or inspect.Parameter.empty), **place}
    own = {
        one.parameter: (
            Annotated[
                list[str] if one.kind is list else one.kind | None,
                typer.Option(
                    *one.words,
                    metavar=one.metavar or None,
                    help=one.help,
                    show_default=False,
                    min=0 if one.kind is int else None,
                ),
            ],
            one.unset,
        )
        for one in table.options
    }
    parameters = [
        inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=unset)
        for one, (kind, unset) in (place | own).items()
    ]
    command = with_parameters(execute, getattr(run_commands, name), parameters)
    section = START if name in ("stop", "cancel") else LOOK
    app.command(name, rich_help_panel=section)(on_host()(command))


for _name, _options in quick.COMMANDS.items():
    _add_quick(_name, _options)
