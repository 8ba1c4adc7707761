"""Watching a run from outside: what it writes, and how it ends. Files, and the cluster's word."""

import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from echelon.cli import console
from echelon.core.ranklogs import Line, RunLogs

if TYPE_CHECKING:
    from echelon.clusters.base import Cluster, Job
    from echelon.core.rundir import RunDir

_COLOURS = (36, 33, 32, 35, 34, 31)
_LOOK_S = 0.05
"""How often files are looked at."""
_ASK_S = 1.0
"""How often Slurm is asked."""


def follow_run(run: "RunDir", cluster: "Cluster", *, show: bool, rank: int | None = None) -> "Job":
    """Wait for the run's job to be over, showing what it writes; return the job."""
    from echelon.clusters.runs import attempts, current_job  # noqa: PLC0415

    logs, tails = RunLogs(run.logs, rank=rank), dict[Path, _Tail]()
    asked_s = -_ASK_S
    job = None
    while True:
        known = attempts(run)
        ended = bool(known) and run.outcome(known[-1].number).exists()
        if job is None or ended or time.monotonic() - asked_s >= _ASK_S or not _distant(job):
            job, asked_s = current_job(run, cluster), time.monotonic()
        if show:
            for attempt in known:
                path = Path(attempt.output)
                if attempt.output and path.is_file():
                    lines = tails.setdefault(path, _Tail(path)).read(to_the_end=job.over)
                    _show_job(lines, rank, labelled=_labelled(run))
            for line in logs.read(over=job.over, now_s=time.time()):
                _show_line(line)
            sys.stdout.flush()
        if job.over:
            reason = f" ({job.reason})" if job.reason else ""
            console.note(f"{run.run_id}: {job.state}{reason}")
            return job
        time.sleep(_LOOK_S)


def follow_to_the_end(run: "RunDir", cluster: "Cluster") -> "Job":
    """Follow a run that belongs to this command: Ctrl-C stops it, and a second one at once."""
    from echelon.clusters.runs import attempts  # noqa: PLC0415

    interrupted = False
    try:
        while True:
            try:
                job = follow_run(run, cluster, show=True)
            except KeyboardInterrupt:
                job_id = attempts(run)[-1].job_id
                if interrupted:
                    cluster.cancel(job_id, run_id=run.run_id)
                else:
                    console.note("stopping; again to stop at once")
                    cluster.stop(job_id, run_id=run.run_id)
                interrupted = True
            else:
                # Whoever calls us expects what any interrupted command returns.
                stopped = interrupted and job.state == "CANCELLED"
                return replace(job, exit_code=128 + signal.SIGINT) if stopped else job
    except BaseException:
        cluster.cancel(attempts(run)[-1].job_id, run_id=run.run_id)
        raise


def _distant(job: "Job") -> bool:
    """Tell whether asking about a job costs somebody else's time."""
    return not job.id.startswith("local:")


def exit_code(job: "Job") -> int:
    """Return the code for whoever waits: the run's own, never 0 unless it completed."""
    return 0 if job.state == "COMPLETED" else job.exit_code or 1


def print_logs(run: "RunDir", *, rank: int | None) -> bool:
    """Print all that a run has written; return whether there was anything."""
    from echelon.clusters.runs import attempts  # noqa: PLC0415

    found = False
    for attempt in attempts(run):
        path = Path(attempt.output)
        if attempt.output and path.is_file():
            lines = _Tail(path).read(to_the_end=True)
            _show_job(lines, rank, labelled=_labelled(run))
            found = found or bool(lines)
    for line in RunLogs(run.logs, rank=rank).read(over=True, now_s=time.time()):
        _show_line(line)
        found = True
    return found


def _labelled(run: "RunDir") -> bool:
    """Tell whether srun has put its tasks' numbers before the lines of the job's output."""
    return not run.launcher.exists()


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
        lines = whole.decode(errors="replace").split("\n")
        return lines[:-1] if lines[-1] == "" else lines


def _show_job(lines: list[str], rank: int | None, *, labelled: bool) -> None:
    """Print the job's own output: the ranks' where srun labels it, else its controller's."""
    for line in lines:
        match = re.match(r" *(\d+): ", line) if labelled else None
        if not labelled and rank is None:
            console.note(line)
        elif rank is None and match is None:
            console.print_result(line)
        elif match and rank in (None, int(match[1])):
            _print_labelled(int(match[1]), line[match.end() :])


def _show_line(line: Line) -> None:
    _print_labelled(line.rank, line.text)


def _print_labelled(rank: int, text: str) -> None:
    """Print `3: text`, coloured by rank in a terminal."""
    label = f"{rank}: "
    if sys.stdout.isatty():
        label = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{label}\x1b[0m"
    console.print_result(f"{label}{text}")
