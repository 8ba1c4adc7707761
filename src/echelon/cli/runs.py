"""Commands that start, stop and show runs, on this machine or a cluster."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.api.hosts import find_site
from echelon.api.places import Places, choose_cluster, choose_spec, cluster_of
from echelon.cli import console
from echelon.cli.help import CONFIGURATION, LOOK, START, SectionedCommand
from echelon.cli.options import UNTIL_SCRIPT, takes_request
from echelon.cli.places import Address, NewAddress, On
from echelon.cli.remote import (
    ClusterName,
    HostName,
    forward,
    list_elsewhere,
    logs_there,
    on_host,
    resume_there,
)
from echelon.core.codec import encode
from echelon.core.jobs import Job, describe_job, short_id
from echelon.errors import ConflictError, NotFoundError, UsageError
from echelon.run.attempts import attempts, is_of_use
from echelon.run.directory import RunDir
from echelon.run.listing import find_run, list_runs, list_sweeps
from echelon.run.request import known_code
from echelon.spec.merging import Merged

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster

app = typer.Typer(rich_markup_mode=None)


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    runs = Path(context.params.get("runs_dir") or os.environ.get("ECHELON_RUNS_DIR") or "runs")
    from echelon.api.register import read_register  # noqa: PLC0415

    elsewhere = [one.run for one in reversed(read_register(os.environ))]
    names = ["last", *(run.run_id for run in reversed(list_runs(runs))), *elsewhere]
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
    typer.Argument(
        help="Run id or a unique prefix, a job id, or last.", autocompletion=complete_run
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Output JSON.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run and exit with its status.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print the run's output while waiting.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Execute the run's files even if you did not submit them.")
]
RUNS = Path("runs")
FORGOTTEN = ("UNKNOWN", "UNSUBMITTED")


def announce(run: RunDir, job_id: str, *, as_json: bool) -> None:
    """Print a run that was submitted."""
    if as_json:
        console.print_json({"run": run.run_id, "job_id": job_id, "directory": str(run.path)})
        return
    console.print_result(run.run_id)
    how = "started" if job_id.startswith("local:") else "queued"
    console.note(f"{how} {describe_job(job_id)}; follow the output: echelon logs -f {run.run_id}")


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
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
    from echelon.api.parameters import take_array  # noqa: PLC0415
    from echelon.api.submission import (  # noqa: PLC0415
        Place,
        check_request,
        settle_request,
        start_run,
    )
    from echelon.api.waiting import exit_code  # noqa: PLC0415
    from echelon.cli.following import follow_run  # noqa: PLC0415
    from echelon.clusters.slurm.styles import render_script  # noqa: PLC0415

    if request.host and on == "slurm":
        from echelon.cli.remote import submit_array_there, submit_there  # noqa: PLC0415

        if not dry_run and (tasks := take_array(request.spec)):
            raise typer.Exit(submit_array_there(request, *tasks, wait=wait, as_json=as_json))
        raise typer.Exit(
            submit_there(request, wait=wait, show=follow, dry_run=dry_run, as_json=as_json)
        )
    spec, cluster = settle_request(request, Place(on=on, runs=runs_dir, address=address))
    array = take_array(spec) if on == "slurm" else None
    check_request(array[0] if array else spec, cluster, "submit")
    if array and not dry_run:
        from echelon.cli.tasks import submit_array  # noqa: PLC0415

        raise typer.Exit(submit_array(*array, cluster, runs_dir, wait=wait, as_json=as_json))
    if dry_run:
        console.print_file(render_script(spec, conda_exe=os.environ.get("CONDA_EXE", "")))
        return
    run, job_id = start_run(spec, cluster, runs_dir, os.environ)
    announce(run, job_id, as_json=as_json)
    if wait or follow:
        raise typer.Exit(exit_code(follow_run(run, cluster, show=follow, resubmit=True)))


@app.command(cls=SectionedCommand, context_settings=UNTIL_SCRIPT, rich_help_panel=START)
@takes_request
def run(
    *, request: Merged, runs_dir: RunsDir = RUNS, on: On = "auto", address: Address = ""
) -> None:
    """Run a script now, in the foreground.

    Inside an allocation it uses all nodes, otherwise processes on this machine. With --on slurm or
    --on ray it submits a job that stops when this command does.

    Example: echelon run --procs 4 train.py --lr 0.1
    """
    from echelon.api.submission import check_request, choose_snapshot, start_run  # noqa: PLC0415
    from echelon.api.waiting import exit_code  # noqa: PLC0415
    from echelon.cli.following import follow_to_the_end  # noqa: PLC0415
    from echelon.clusters.local import fit_allocation  # noqa: PLC0415
    from echelon.core.slurm import scrub  # noqa: PLC0415

    if request.host and on == "slurm":
        raise UsageError(
            f"a run on {request.host} cannot belong to this command",
            hint="submit it, and follow its output: echelon submit --follow",
        )
    environ = scrub(os.environ) if on == "local" else os.environ
    queued = on in ("slurm", "ray")
    spec = choose_snapshot(choose_spec(request, on, environ), default=queued)
    if not queued:
        spec = fit_allocation(spec, environ, asked=request.origins["nodes"] != "default")
    cluster = choose_cluster(on, runs_dir, address=address, tied=True, environ=environ)
    check_request(spec, cluster, "run")
    found, job_id = start_run(spec, cluster, runs_dir, environ)
    console.note(f"{found.run_id}: running {spec.script} {describe_job(job_id)}")
    raise typer.Exit(exit_code(follow_to_the_end(found, cluster)))


@app.command(rich_help_panel=LOOK)
def ps(
    *,
    runs_dir: RunsDir = RUNS,
    cluster: ClusterName = "",
    host: HostName = "",
    as_json: AsJson = False,
) -> None:
    """List runs and their state, also those on other hosts.

    A sweep is one line; echelon sweep table lists its tasks.

    Example: echelon ps --json
    """
    if site := find_site(cluster, host):
        raise typer.Exit(forward(site, ["ps", *(["--json"] if as_json else [])]))
    rows, places = [], Places()
    silent: dict[str, str] = {}
    for run in list_runs(runs_dir):
        if run.task.exists():
            continue  # its sweep has one row for all tasks
        job, known = places.job(run), attempts(run)
        if job.state == "UNKNOWN":
            silent.setdefault(job.reason, run.run_id)
        job_id = job.id if as_json else short_id(job.id)
        rows.append(
            [run.run_id, job.state, job_id, job.nodes, known[-1].submitted if known else ""]
        )
    rows += _list_sweeps(runs_dir)
    headings = ["run", "state", "job", "nodes", "submitted"]
    elsewhere = list(list_elsewhere()) if runs_dir == RUNS else []
    if elsewhere:
        names, headings = headings, [*headings, "host"]
        rows = [[*row, ""] for row in rows]
        for site, found in elsewhere:
            rows += [[*(str(one[name]) for name in names), site.host] for one in found]
    if as_json:
        console.print_json([dict(zip(headings, row, strict=True)) for row in rows])
    elif rows:
        console.print_table(headings, rows)
    else:
        console.note(f"no runs in {runs_dir.absolute()}; start one: echelon submit SCRIPT.py")
    for reason, run_id in silent.items():
        console.note(f"{run_id}: the state is unknown: {reason}")


def _list_sweeps(runs_dir: Path) -> list[list[str]]:
    """Return one row per sweep: Slurm is asked about its tasks together."""
    found = list_sweeps(runs_dir)
    if not found:
        return []
    from echelon.api.sweeps import read_tasks  # noqa: PLC0415
    from echelon.cli.tasks import count_states  # noqa: PLC0415
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    slurm = SlurmCluster(LocalShell(), os.environ, tell=console.note)
    return [
        [
            *(sweep.sweep_id, count_states(read_tasks(sweep, slurm))),
            *(",".join(array.job_id for array in sweep.arrays()), "", ""),
        ]
        for sweep in found
    ]


@app.command(rich_help_panel=LOOK)
@on_host()
def status(run: Run = "last", *, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """Show a run's state, nodes, exit code and files.

    Example: echelon status last
    """
    from echelon.api.waiting import MOST_NODES  # noqa: PLC0415
    from echelon.monitor.accounting import account  # noqa: PLC0415
    from echelon.monitor.reading import RunReader  # noqa: PLC0415

    found = find_run(runs_dir, run)
    job = Places().job(found)
    code = known_code(found)
    seen = RunReader(found, first=1, most_nodes=MOST_NODES, metrics=False).read()
    facts = {
        "run": found.run_id,
        "state": job.state,
        "reason": job.reason,
        "job": job.id if as_json else short_id(job.id),
        "attempts": sum(is_of_use(found, attempt) for attempt in attempts(found)),
        "nodes": job.nodes,
        "step": seen.step if seen.step >= 0 else None,
        "exit_code": None if not job.over or job.state in FORGOTTEN else job.exit_code,
        "code": code.describe() if code else "",
        "directory": str(found.path.absolute()),
    }
    accounts = account(seen)
    if as_json:
        effective = None if accounts.effective is None else round(accounts.effective, 4)
        facts["code"] = encode(code) if code else None
        console.print_json({**facts, "effective": effective, "time": accounts.seconds})
    else:
        facts["effective"] = accounts.render()
        rows = [[name, str(fact)] for name, fact in facts.items() if fact not in ("", None)]
        console.print_table(["", ""], rows)


@app.command(rich_help_panel=LOOK)
@on_host(logs_there)
def logs(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Keep printing until the run ends.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="Print only this rank's lines.")] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Print only the last N lines.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print control characters unchanged, not escaped.")
    ] = False,
) -> None:
    """Print a run's output, with the rank of each line.

    Colors are kept, other control characters are escaped, and of a progress bar only the last state
    is shown.

    Example: echelon logs -f --rank 3 last
    """
    from echelon.api.waiting import exit_code  # noqa: PLC0415
    from echelon.cli.following import follow_run, print_logs  # noqa: PLC0415

    found = find_run(runs_dir, run)
    if follow:
        job = follow_run(found, cluster_of(found), show=True, rank=rank, raw=raw, tail=tail)
        raise typer.Exit(exit_code(job))
    if not print_logs(found, rank=rank, raw=raw, tail=tail) and tail != 0:
        who = "" if rank is None else f"rank {rank} of "
        raise NotFoundError(
            f"{who}the run '{found.run_id}' has not printed anything yet",
            hint=f"show its state: echelon status {found.run_id}",
        )


@app.command(rich_help_panel=START)
@on_host()
def stop(run: Run, *, runs_dir: RunsDir = RUNS, address: NewAddress = "") -> None:
    """Ask a run to stop; ranks that use the library save first.

    Example: echelon stop last
    """
    from echelon.api.waiting import stop_all  # noqa: PLC0415

    if _cancel_waiting(runs_dir, run):
        return
    found, cluster = _find(runs_dir, run, address)
    if _current(found, cluster):
        stop_all(found, cluster)
        console.note(f"stop requested; continue later with: echelon resume {found.run_id}")


@app.command(rich_help_panel=START)
@on_host()
def cancel(run: Run, *, runs_dir: RunsDir = RUNS, address: NewAddress = "") -> None:
    """End a run immediately.

    Example: echelon cancel last
    """
    from echelon.api.waiting import cancel_all  # noqa: PLC0415

    if _cancel_waiting(runs_dir, run):
        return
    found, cluster = _find(runs_dir, run, address)
    if _current(found, cluster):
        cancel_all(found, cluster)
        console.note(f"cancelled {found.run_id}")


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
    from echelon.api.relocation import settle_run  # noqa: PLC0415
    from echelon.api.runs import current_job, submit_run  # noqa: PLC0415
    from echelon.api.submission import remember  # noqa: PLC0415
    from echelon.api.trust import read_script  # noqa: PLC0415
    from echelon.api.waiting import exit_code  # noqa: PLC0415
    from echelon.cli.following import follow_run, follow_to_the_end  # noqa: PLC0415
    from echelon.clusters.local import PREFIX  # noqa: PLC0415

    found, cluster = _find(runs_dir, run, address)
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
    here = job.id.startswith(PREFIX)
    if here:
        cluster = choose_cluster("local", runs_dir, tied=True)
    script = read_script(found, os.environ, trust=trust)
    script, home = settle_run(found, script)
    if home is not None:
        console.note(f"{found.run_id} was moved from {home}; updated the paths in its files")
    if trust or home is not None:
        remember(found, script)
    attempt = submit_run(found, cluster, os.environ, script)
    console.note(f"resumed {found.run_id} {describe_job(attempt.job_id)}")
    if here:
        raise typer.Exit(exit_code(follow_to_the_end(found, cluster)))
    if wait or follow:
        raise typer.Exit(exit_code(follow_run(found, cluster, show=follow, resubmit=True)))


def _cancel_waiting(runs_dir: Path, name: str) -> bool:
    """Cancel a task of a sweep that has not started yet; return whether the name is one."""
    from echelon.api.sweeps import (  # noqa: PLC0415
        cancel_waiting,
        check_home,
        find_waiting,
        read_tasks,
    )
    from echelon.clusters.slurm.cluster import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    found = find_waiting(runs_dir, name)
    if found is None:
        return False
    sweep, index = found
    check_home(sweep)
    slurm = SlurmCluster(LocalShell(), os.environ, tell=console.note)
    tasks = read_tasks(sweep, slurm, strict=True)
    job = next(task.job for task in tasks if task.index == index)
    if job.over and job.id:
        console.note(f"{name} has already ended: {job.state}")
    else:
        cancel_waiting(sweep, index, job)
        console.note(f"cancelled {name}, which had not started")
    return True


def _find(runs_dir: Path, name: str, address: str) -> tuple[RunDir, "Cluster"]:
    """Return a run that has a job, and its cluster."""
    from echelon.api.relocation import check_original  # noqa: PLC0415

    found = find_run(runs_dir, name)
    check_original(found)
    if not attempts(found):
        raise NotFoundError(
            f"the run '{found.run_id}' has no job", hint="check the queue: squeue --me"
        )
    return found, cluster_of(found, address=address)


def _current(run: RunDir, cluster: "Cluster") -> Job | None:
    """Return the job to end; None, with a message, if the run has already ended."""
    from echelon.api.runs import current_job  # noqa: PLC0415

    job = current_job(run, cluster)
    if job.over and job.state not in FORGOTTEN:
        console.note(f"{run.run_id} has already ended: {job.state}")
        return None
    return job


@app.command(rich_help_panel=LOOK)
@on_host()
def why(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Explain why a run failed: first failed rank, node and error.

    Example: echelon why last
    """
    from echelon.api.runs import find_verdict  # noqa: PLC0415
    from echelon.run.verdict import render  # noqa: PLC0415

    found = find_run(runs_dir, run)
    verdict = find_verdict(found, Places().job(found))
    if as_json:
        console.print_json(asdict(verdict) if verdict else None)
    elif verdict:
        console.print_result(f"{found.run_id}\n{render(verdict, whole=True, run=found.path)}")
    else:
        console.note(f"{found.run_id} has not failed")
