"""`echelon submit`, `run`, `resume`, `ps`, `status`, `logs`, `stop`, `cancel`: runs, anywhere."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.help import CONFIGURATION, LOOK, START, SectionedCommand
from echelon.cli.options import takes_request
from echelon.cli.places import (
    Address,
    NewAddress,
    On,
    Places,
    choose_cluster,
    choose_spec,
    cluster_of,
)
from echelon.cli.request import UNTIL_SCRIPT
from echelon.errors import ConflictError, NotFoundError, UsageError
from echelon.spec.merging import Merged

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster
    from echelon.core.jobs import Job
    from echelon.run.directory import RunDir
    from echelon.spec.job_spec import JobSpec

app = typer.Typer(rich_markup_mode=None)


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    from echelon.run.listing import list_runs  # noqa: PLC0415

    runs = Path(context.params.get("runs_dir") or os.environ.get("ECHELON_RUNS_DIR") or "runs")
    names = ["last", *(run.run_id for run in reversed(list_runs(runs)))]
    return [name for name in names if name.startswith(incomplete)]


RunsDir = Annotated[
    Path,
    typer.Option(
        "--runs-dir",
        metavar="DIR",
        envvar="ECHELON_RUNS_DIR",
        help="Directory of runs.",
        rich_help_panel=CONFIGURATION,
    ),
]
Run = Annotated[
    str,
    typer.Argument(help="Run id or its beginning, a job id, or last.", autocompletion=complete_run),
]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON.")]
RUNS = Path("runs")
FORGOTTEN = ("UNKNOWN", "UNSUBMITTED")


def _start(
    spec: "JobSpec", cluster: "Cluster", runs: Path, environ: Mapping[str, str]
) -> tuple["RunDir", str]:
    """Make a run and start it; return it and its job's id."""
    from echelon.api.runs import prepare_run, submit_run  # noqa: PLC0415
    from echelon.core.ownership import find_intruder  # noqa: PLC0415

    folder = Path(spec.chdir or Path.cwd()).absolute()
    run, _ = prepare_run(spec, runs.absolute(), folder, conda_exe=environ.get("CONDA_EXE", ""))
    script = run.script.read_bytes()
    if why := find_intruder(run.path):
        console.note(
            f"warning: others could replace the folders of your runs: {why}; Slurm and Ray jobs "
            "start only what was submitted, but logs and checkpoints are not protected (--runs-dir)"
        )
    _remember(run, script)
    try:
        return run, submit_run(run, cluster, environ, script).job_id
    except UsageError:
        shutil.rmtree(run.path)  # it was refused: there is no run
        raise


def _remember(run: "RunDir", script: bytes) -> None:
    """Write down that a script is the user's own, so that the run can be resumed."""
    from echelon.api.trust import remember_script  # noqa: PLC0415

    if why := remember_script(script, os.environ):
        console.note(f"warning: echelon resume {run.run_id} will need --trust: {why}")


def _check(spec: "JobSpec", cluster: "Cluster", command: str) -> None:
    """Find everything that is wrong with a request before anything is started."""
    from echelon.api.runs import check_files, check_python  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    if not spec.script:
        raise UsageError(
            "no training script is named", hint=f"echelon {command} --nodes 2 train.py"
        )
    folder = Path(spec.chdir or Path.cwd())
    problems = [
        *check_files(spec, folder),
        *check_python(spec, folder, LocalShell()),
        *cluster.problems(spec),
    ]
    if problems:
        raise UsageError(
            "; ".join(problems),
            hint="nothing was started; echelon config shows where each value came from",
        )


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
@takes_request
def submit(
    *,
    request: Merged,
    runs_dir: RunsDir = RUNS,
    on: On = "slurm",
    address: Address = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the run and exit with its status.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print its output while waiting.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the request and print the script; queue nothing."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a request, queue it and print the run id.

    Example: echelon submit --nodes 2 --gpus 4 --time 2h train.py --lr 0.1
    """
    from echelon.cli.following import exit_code, follow_run  # noqa: PLC0415
    from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

    cluster = choose_cluster(on, runs_dir, address=address)
    spec = choose_spec(request, on, os.environ)
    _check(spec, cluster, "submit")
    if dry_run:
        console.print_file(render_script(spec, conda_exe=os.environ.get("CONDA_EXE", "")))
        return
    run, job_id = _start(spec, cluster, runs_dir, os.environ)
    if as_json:
        console.print_json({"run": run.run_id, "job_id": job_id, "directory": str(run.path)})
    else:
        console.print_result(run.run_id)
        console.note(f"queued as job {job_id}; see: echelon logs -f {run.run_id}")
    if wait or follow:
        raise typer.Exit(exit_code(follow_run(run, cluster, show=follow, resubmit=True)))


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
@takes_request
def run(
    *, request: Merged, runs_dir: RunsDir = RUNS, on: On = "auto", address: Address = ""
) -> None:
    """Run a script now, in the foreground.

    Inside an allocation on all its nodes, otherwise as processes of this machine; with --on slurm
    or --on ray as a job that ends with this command.

    Example: echelon run --procs 4 train.py --lr 0.1
    """
    from echelon.cli.following import exit_code, follow_to_the_end  # noqa: PLC0415
    from echelon.clusters.local import fit_allocation  # noqa: PLC0415
    from echelon.core.slurm import scrub  # noqa: PLC0415

    environ = scrub(os.environ) if on == "local" else os.environ
    spec = choose_spec(request, on, environ)
    if on not in ("slurm", "ray"):
        spec = fit_allocation(spec, environ, asked=request.origins["nodes"] != "default")
    cluster = choose_cluster(on, runs_dir, address=address, tied=True, environ=environ)
    _check(spec, cluster, "run")
    found, job_id = _start(spec, cluster, runs_dir, environ)
    console.note(f"{found.run_id}: {spec.script} as {job_id}")
    raise typer.Exit(exit_code(follow_to_the_end(found, cluster)))


@app.command(rich_help_panel=LOOK)
def ps(*, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """List runs and their state.

    Example: echelon ps --json
    """
    from echelon.api.runs import current_job  # noqa: PLC0415
    from echelon.run.attempts import attempts  # noqa: PLC0415
    from echelon.run.listing import list_runs  # noqa: PLC0415

    rows, places = [], Places()
    for run in list_runs(runs_dir):
        job, known = current_job(run, places.of(run)), attempts(run)
        rows.append(
            [run.run_id, job.state, job.id, job.nodes, known[-1].submitted if known else ""]
        )
    headings = ["run", "state", "job", "nodes", "submitted"]
    if as_json:
        console.print_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif rows:
        console.print_table(headings, rows)
    else:
        console.note(f"no runs in {runs_dir.absolute()}; start one: echelon submit train.py")


@app.command(rich_help_panel=LOOK)
def status(run: Run = "last", *, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """Show a run's state, nodes, exit code and files.

    Example: echelon status last
    """
    from echelon.api.runs import current_job  # noqa: PLC0415
    from echelon.cli.following import MOST_NODES  # noqa: PLC0415
    from echelon.monitor.accounting import account, read_attempts  # noqa: PLC0415
    from echelon.monitor.reading import RunReader  # noqa: PLC0415
    from echelon.run.attempts import attempts, is_of_use  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    found = find_run(runs_dir, run)
    job = current_job(found, Places().of(found))
    seen = RunReader(found, first=1, most_nodes=MOST_NODES, metrics=False).read()
    facts = {
        "run": found.run_id,
        "state": job.state,
        "reason": job.reason,
        "job": job.id,
        "attempts": sum(is_of_use(found, attempt) for attempt in attempts(found)),
        "nodes": job.nodes,
        "step": seen.step if seen.step >= 0 else None,
        "exit_code": None if not job.over or job.state in FORGOTTEN else job.exit_code,
        "directory": str(found.path.absolute()),
    }
    accounts = account(read_attempts(found), seen.seen_s)
    if as_json:
        effective = None if accounts.effective is None else round(accounts.effective, 4)
        console.print_json({**facts, "effective": effective, "time": accounts.seconds})
    else:
        facts["effective"] = accounts.render()
        rows = [[name, str(fact)] for name, fact in facts.items() if fact not in ("", None)]
        console.print_table(["", ""], rows)


@app.command(rich_help_panel=LOOK)
def logs(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing until the run is over.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="Print only this rank's lines.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print control characters unchanged, not escaped.")
    ] = False,
) -> None:
    """Print a run's output, with the rank of each line.

    Colours pass; other control characters are shown escaped, and a progress bar's line as it was
    last.

    Example: echelon logs -f --rank 3 last
    """
    from echelon.cli.following import exit_code, follow_run, print_logs  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    found = find_run(runs_dir, run)
    if follow:
        job = follow_run(found, cluster_of(found), show=True, rank=rank, raw=raw)
        raise typer.Exit(exit_code(job))
    if not print_logs(found, rank=rank, raw=raw):
        who = "" if rank is None else f"rank {rank} of "
        raise NotFoundError(
            f"{who}the run '{found.run_id}' has written nothing yet",
            hint=f"see how it is: echelon status {found.run_id}",
        )


@app.command(rich_help_panel=START)
def stop(run: Run, *, runs_dir: RunsDir = RUNS, address: NewAddress = "") -> None:
    """Ask a run to stop; ranks that use the library save first.

    Example: echelon stop last
    """
    from echelon.cli.following import stop_all  # noqa: PLC0415

    found, cluster = _find(runs_dir, run, address)
    if _current(found, cluster):
        stop_all(found, cluster)
        console.note(f"{found.run_id} is asked to stop; later: echelon resume {found.run_id}")


@app.command(rich_help_panel=START)
def cancel(run: Run, *, runs_dir: RunsDir = RUNS, address: NewAddress = "") -> None:
    """End a run immediately.

    Example: echelon cancel last
    """
    from echelon.cli.following import cancel_all  # noqa: PLC0415

    found, cluster = _find(runs_dir, run, address)
    if _current(found, cluster):
        cancel_all(found, cluster)
        console.note(f"{found.run_id} is cancelled")


@app.command(rich_help_panel=START)
def resume(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    address: NewAddress = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the run and exit with its status.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print its output while waiting.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Execute the run's files even if they are not what you submitted."
        ),
    ] = False,
) -> None:
    """Resume a run that was stopped or has failed.

    It is the same request, and begins with what was saved. A run of this machine goes on here, in
    the foreground. A run directory that somebody else made, or that was changed since it was
    submitted, is executed only with --trust.

    Example: echelon resume last --follow
    """
    from echelon.api.relocation import settle_run  # noqa: PLC0415
    from echelon.api.runs import current_job, submit_run  # noqa: PLC0415
    from echelon.api.trust import read_script  # noqa: PLC0415
    from echelon.cli.following import exit_code, follow_run, follow_to_the_end  # noqa: PLC0415
    from echelon.clusters.local import PREFIX  # noqa: PLC0415

    found, cluster = _find(runs_dir, run, address)
    # Asked for at another address it may still be where it was: if that answers, its word counts.
    job = current_job(found, Places().of(found) if address else cluster)
    if not job.over:
        raise ConflictError(
            f"the run '{found.run_id}' is not over: job {job.id} is {job.state}",
            hint=f"watch it: echelon logs -f {found.run_id}",
        )
    if job.state == "COMPLETED":
        raise ConflictError(
            f"the run '{found.run_id}' is complete: nothing is left to do",
            hint="start another one: echelon submit",
        )
    here = job.id.startswith(PREFIX)
    if here:
        cluster = choose_cluster("local", runs_dir, tied=True)
    script = read_script(found, os.environ, trust=trust)
    script, home = settle_run(found, script)
    if home is not None:
        console.note(f"{found.run_id} was moved here from {home}; its files name this place now")
    if trust or home is not None:
        _remember(found, script)
    attempt = submit_run(found, cluster, os.environ, script)
    console.note(f"{found.run_id} goes on as job {attempt.job_id}")
    if here:
        raise typer.Exit(exit_code(follow_to_the_end(found, cluster)))
    if wait or follow:
        raise typer.Exit(exit_code(follow_run(found, cluster, show=follow, resubmit=True)))


def _find(runs_dir: Path, name: str, address: str) -> tuple["RunDir", "Cluster"]:
    """Return a run that has a job, and its place."""
    from echelon.api.relocation import check_original  # noqa: PLC0415
    from echelon.run.attempts import attempts  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    found = find_run(runs_dir, name)
    check_original(found)
    if not attempts(found):
        raise NotFoundError(
            f"the run '{found.run_id}' has no job", hint="squeue --me shows whether one is queued"
        )
    return found, cluster_of(found, address=address)


def _current(run: "RunDir", cluster: "Cluster") -> "Job | None":
    """Return the job to end; None, and say so, when there is nothing left to end."""
    from echelon.api.runs import current_job  # noqa: PLC0415

    job = current_job(run, cluster)
    if job.over and job.state not in FORGOTTEN:
        console.note(f"{run.run_id} is over already: {job.state}")
        return None
    return job


@app.command(rich_help_panel=LOOK)
def why(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Explain why a run failed: first rank, place and error.

    Example: echelon why last
    """
    from echelon.api.runs import current_job  # noqa: PLC0415
    from echelon.api.why import find_verdict  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415
    from echelon.run.verdict import render, to_record  # noqa: PLC0415

    found = find_run(runs_dir, run)
    verdict = find_verdict(found, current_job(found, Places().of(found)))
    if as_json:
        console.print_json(to_record(verdict) if verdict else None)
    elif verdict:
        console.print_result(f"{found.run_id}\n{render(verdict, whole=True, run=found.path)}")
    else:
        console.note(f"{found.run_id} has not failed")
