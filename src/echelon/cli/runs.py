"""`echelon submit`, `ps`, `status`, `logs`, `cancel`: runs on Slurm."""

import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli import console
from echelon.cli.options import takes_request
from echelon.cli.request import UNTIL_SCRIPT
from echelon.errors import NotFoundError, UsageError
from echelon.spec import Merged

if TYPE_CHECKING:
    from echelon.clusters.base import Job
    from echelon.clusters.slurm import SlurmCluster
    from echelon.core.rundir import RunDir

app = typer.Typer(rich_markup_mode=None)

_COLOURS = (36, 33, 32, 35, 34, 31)


def _complete_run(context: typer.Context, incomplete: str) -> list[str]:
    from echelon.clusters.runs import list_runs  # noqa: PLC0415

    runs = Path(context.params.get("runs_dir") or os.environ.get("ECHELON_RUNS_DIR") or "runs")
    return [run.run_id for run in list_runs(runs) if run.run_id.startswith(incomplete)]


RunsDir = Annotated[
    Path, typer.Option("--runs-dir", envvar="ECHELON_RUNS_DIR", help="Where runs are kept.")
]
Run = Annotated[
    str,
    typer.Argument(
        help="Its id or the beginning of it, a job's id, or last.", autocompletion=_complete_run
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs to read.")]
RUNS = Path("runs")
FORGOTTEN = ("UNKNOWN", "UNSUBMITTED")


def _slurm() -> "SlurmCluster":
    from echelon.clusters.slurm import SlurmCluster  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    return SlurmCluster(LocalShell(), os.environ)


@app.command(context_settings=UNTIL_SCRIPT)
@takes_request
def submit(
    *,
    request: Merged,
    runs_dir: RunsDir = RUNS,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it is over, with its code.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show its output meanwhile.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, print the script, and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a request, queue it, and print the run's id.

    Example: echelon submit --nodes 2 --gpus 4 --time 2h train.py --lr 0.1
    """
    from echelon.clusters.runs import (  # noqa: PLC0415
        check_files,
        check_python,
        prepare_run,
        submit_run,
    )
    from echelon.clusters.styles import render_script  # noqa: PLC0415
    from echelon.core.shell import LocalShell  # noqa: PLC0415

    spec, cluster = request.spec, _slurm()
    folder = Path(spec.chdir or Path.cwd())
    if not spec.script:
        raise UsageError("no training script is named", hint="echelon submit --nodes 2 train.py")
    problems = [
        *check_files(spec, folder),
        *check_python(spec, folder, LocalShell()),
        *cluster.problems(spec),
    ]
    if problems:
        raise UsageError("; ".join(problems), hint="nothing was queued; see echelon config")
    if dry_run:
        console.print_result(render_script(spec).rstrip("\n"))
        return
    run, _ = prepare_run(spec, runs_dir.absolute(), folder.absolute())
    try:
        attempt = submit_run(run, cluster, os.environ)
    except UsageError:
        shutil.rmtree(run.path)  # Slurm refuses it: there is no run
        raise
    if as_json:
        console.print_json(
            {"run": run.run_id, "job_id": attempt.job_id, "directory": str(run.path)}
        )
    else:
        console.print_result(run.run_id)
        console.note(f"queued as job {attempt.job_id}; see: echelon logs -f {run.run_id}")
    if wait or follow:
        job = _follow(run, cluster, show=follow)
        raise typer.Exit(_code(job))


@app.command()
def ps(*, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """List the runs of this folder, and how they are.

    Example: echelon ps --json
    """
    from echelon.clusters.runs import attempts, current_job, list_runs  # noqa: PLC0415

    cluster, rows = _slurm(), []
    for run in list_runs(runs_dir):
        job, known = current_job(run, cluster), attempts(run)
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


@app.command()
def status(run: Run = "last", *, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """Show one run: state, reason, nodes, exit code, files.

    Example: echelon status last
    """
    from echelon.clusters.runs import attempts, current_job, find_run  # noqa: PLC0415

    found = find_run(runs_dir, run)
    job = current_job(found, _slurm())
    facts = {
        "run": found.run_id,
        "state": job.state,
        "reason": job.reason,
        "job": job.id,
        "attempts": len(attempts(found)),
        "nodes": job.nodes,
        "exit_code": None if not job.over or job.state in FORGOTTEN else job.exit_code,
        "directory": str(found.path.absolute()),
    }
    if as_json:
        console.print_json(facts)
    else:
        rows = [[name, str(fact)] for name, fact in facts.items() if fact not in ("", None)]
        console.print_table(["", ""], rows)


@app.command()
def logs(
    run: Run = "last",
    *,
    runs_dir: RunsDir = RUNS,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Until the run is over.")] = False,
    rank: Annotated[int | None, typer.Option(help="One task's lines alone.")] = None,
) -> None:
    """Print a run's output, each line with its task.

    Example: echelon logs -f --rank 3 last
    """
    from echelon.clusters.runs import find_run  # noqa: PLC0415

    found = find_run(runs_dir, run)
    if follow:
        raise typer.Exit(_code(_follow(found, _slurm(), show=True, rank=rank)))
    outputs = _outputs(found)
    if not outputs:
        raise NotFoundError(
            f"the run '{found.run_id}' has written nothing yet",
            hint=f"see how it is: echelon status {found.run_id}",
        )
    for path in outputs:
        _show(_lines(path.read_bytes()), rank)


@app.command()
def cancel(run: Run, *, runs_dir: RunsDir = RUNS) -> None:
    """End a run's job at once.

    Example: echelon cancel last
    """
    from echelon.clusters.runs import attempts, find_run  # noqa: PLC0415

    found, cluster = find_run(runs_dir, run), _slurm()
    if not (known := attempts(found)):
        raise NotFoundError(
            f"the run '{found.run_id}' has no job", hint="squeue --me shows whether one is queued"
        )
    for attempt in known:
        cluster.cancel(attempt.job_id, run_id=found.run_id)
    console.note(f"{found.run_id} is cancelled")


# --- output -----------------------------------------------------------------------------------


def _outputs(run: "RunDir") -> list[Path]:
    from echelon.clusters.runs import attempts  # noqa: PLC0415

    paths = [Path(attempt.output) for attempt in attempts(run) if attempt.output]
    return [path for path in paths if path.is_file()]


def _follow(
    run: "RunDir", cluster: "SlurmCluster", *, show: bool, rank: int | None = None
) -> "Job":
    """Wait for the run's job to be over, showing what it writes; return the job."""
    from echelon.clusters.runs import current_job  # noqa: PLC0415

    tails: dict[Path, _Tail] = {}
    while True:
        job = current_job(run, cluster)
        for path in _outputs(run) if show else []:
            tail = tails.setdefault(path, _Tail(path))
            _show(tail.read(to_the_end=job.over), rank)
        if job.over:
            console.note(f"{run.run_id}: {job.state}{f' ({job.reason})' if job.reason else ''}")
            return job
        time.sleep(0.5)


class _Tail:
    """Follows a file by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, *, to_the_end: bool) -> list[str]:
        """Return the lines that came since; at the end also one that was never finished."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        whole = added if to_the_end else added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return _lines(whole)


def _lines(content: bytes) -> list[str]:
    lines = content.decode(errors="replace").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _show(lines: list[str], rank: int | None) -> None:
    """Print lines of `srun --label`, `3: text`, coloured by task in a terminal."""
    colour = sys.stdout.isatty()
    for line in lines:
        match = re.match(r" *(\d+): ", line)
        if rank is not None and (not match or int(match[1]) != rank):
            continue
        if match and colour:
            code = _COLOURS[int(match[1]) % len(_COLOURS)]
            console.print_result(f"\x1b[{code}m{match[0]}\x1b[0m{line[match.end() :]}")
        else:
            console.print_result(line)


def _code(job: "Job") -> int:
    """Return the code for whoever waits: the run's own, never 0 unless it completed."""
    return 0 if job.state == "COMPLETED" else job.exit_code or 1
