"""Queries and stops sweeps: many runs of one request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.manage.relocation import find_home
from echelon.client.manage.run_status import current_job, find_verdict, step_job
from echelon.client.manage.waiting import stop_all
from echelon.client.remote.register import is_task
from echelon.client.submit.target import choose_cluster
from echelon.clusters.base import Cluster
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.frozen import frozen
from echelon.core.jobs import LOCAL, WAITING, Job, is_job_id
from echelon.core.slurm import Slurm, forgotten, mark_tasks
from echelon.errors import ConflictError, UnavailableError
from echelon.run.attempts import attempts, outcome
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir, Table, is_sweep, read_table
from echelon.run.verdict import Verdict

NEVER_STARTED = "it was never started"
_UNSUBMITTED = Job(id="", state="UNSUBMITTED", reason="never submitted")

# --- query -----------------------------------------------------------------------------------


@frozen
class Task:
    """One run of a sweep."""

    index: int
    parameters: Mapping[str, str]
    run: RunDir
    """The run, whose directory may not exist yet."""
    job: Job
    verdict: Verdict | None
    """Why the task failed; None if it has not."""

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def state(self) -> str:
        return self.job.state

    @property
    def has_begun(self) -> bool:
        """Whether the current job has recorded itself in the run directory."""
        known = (attempt.job_id for attempt in attempts(self.run))
        return self.state not in WAITING and self.job.id in known

    @property
    def is_left(self) -> bool:
        """Whether the task is not complete, but has ended or was never started."""
        return self.job.over and self.state != "COMPLETED"


def read_tasks(sweep: SweepDir, slurm: Slurm, *, strict: bool = False) -> list[Task]:
    """Return all tasks of a sweep, with at most one query to Slurm and one to its accounting.

    Args:
        sweep: the sweep.
        slurm: the cluster.
        strict: raise an error if the cluster does not respond, instead of the state UNKNOWN.

    Raises:
        UnavailableError: the cluster does not respond.
    """
    table, places = read_table(sweep), Places()
    if table.pack:
        return _read_packed(sweep, table, slurm, strict=strict)
    latest = {task: one.job_of(task) for one in sweep.arrays() for task in one.tasks}
    files = {index: _TaskFiles(sweep.run(index), latest.get(index, "")) for index in table.tasks}
    answers = _Answers(sweep, [one for one in files.values() if not one.is_complete], slurm)
    if answers.error is not None and strict:
        raise answers.error
    found = []
    for index, one in files.items():
        job = one.find_job(answers, places)
        # Slurm keeps no record of a waiting task that was cancelled.
        gone = job.state in ("UNKNOWN", "UNSUBMITTED") and not one.last and not answers.error
        if gone and sweep.cancelled(index).exists():
            job = replace(job, state="CANCELLED", reason=NEVER_STARTED)
        found.append(_make_task(sweep, table, index, job))
    return found


def _make_task(sweep: SweepDir, table: Table, index: int, job: Job) -> Task:
    run = sweep.run(index)
    failed = job.over and job.state not in ("COMPLETED", "UNSUBMITTED", "UNKNOWN")
    verdict = find_verdict(run, job) if failed else None
    return Task(index=index, parameters=table.parameters(index), run=run, job=job, verdict=verdict)


def _read_packed(sweep: SweepDir, table: Table, slurm: Slurm, *, strict: bool) -> list[Task]:
    """Return the tasks of a sweep that share one job."""
    holder = Places().job(sweep.files)
    if strict and holder.state == "UNKNOWN" and holder.reason != forgotten("").reason:
        slurm.job(holder.id, run_id=sweep.sweep_id)  # raises why
    found = []
    for index in table.tasks:
        run = sweep.run(index)
        last = next(reversed(attempts(run)), None)
        is_own = last is not None and not last.within  # it was resumed on its own
        job = Places().job(run) if is_own else step_job(run, last, holder)
        if last is None and sweep.cancelled(index).exists():
            job = Job(id="", state="CANCELLED", reason=NEVER_STARTED)
        found.append(_make_task(sweep, table, index, job))
    return found


class _TaskFiles:
    """The state of a task according to its files, and the job to query from Slurm."""

    def __init__(self, run: RunDir, queued: str) -> None:
        """Read the files.

        Args:
            run: the task's run.
            queued: the task's job in the newest array; empty if it has none.
        """
        self.run, known = run, attempts(run)
        self.last = last = known[-1] if known else None
        ended = outcome(run, last.number) if last else None
        self.is_complete = ended is not None and ended.state == "COMPLETED"
        self.wanted = ""
        """The job to query; empty if Slurm does not have the task's job."""
        if queued and all(one.job_id != queued for one in known):
            self.wanted = queued  # the job has not started
        elif last and is_job_id(last.job_id) and ":" not in last.job_id:
            self.wanted = last.job_id
        same = last is not None and last.job_id == self.wanted
        self.is_final = same and ended is not None and not ended.next
        """Whether the files have the outcome of the wanted job."""

    def find_job(self, answers: "_Answers", places: Places) -> Job:
        """Return the task's job."""
        if self.is_complete and self.last:
            return Job(id=self.last.job_id, state="COMPLETED")
        if not self.wanted:
            return places.job(self.run) if self.run.path.is_dir() else _UNSUBMITTED
        if self.last and (self.last.job_id == self.wanted or self.wanted not in answers.jobs):
            return current_job(self.run, answers)
        return answers.job(self.wanted, run_id=self.run.run_id)


class _Answers:
    """Slurm's answer about all tasks of a sweep, with the interface of a cluster."""

    def __init__(self, sweep: SweepDir, tasks: Sequence[_TaskFiles], slurm: Slurm) -> None:
        owners: dict[str, str] = {}
        arrays = {array.job_id for array in sweep.arrays()}
        for task in tasks:
            array = task.wanted.partition("_")[0]
            if array in arrays:
                owners[array] = mark_tasks(sweep.sweep_id)
            elif task.wanted:  # the task was resumed on its own
                owners[task.wanted] = task.run.run_id
        needed = [task.wanted for task in tasks if task.wanted and not task.is_final]
        self.jobs: Mapping[str, Job] = {}
        self.error: UnavailableError | None = None
        try:
            self.jobs = slurm.jobs(owners, needed)
        except UnavailableError as error:
            self.error = error

    def job(self, job_id: str, *, run_id: str) -> Job:  # noqa: ARG002  the query checked the owner
        """Return a job; UNKNOWN if Slurm did not respond."""
        if self.error:
            return Job(id=job_id, state="UNKNOWN", reason=self.error.message)
        return self.jobs.get(job_id) or forgotten(job_id)


# --- stop ------------------------------------------------------------------------------------


def stop_sweep(sweep: SweepDir, cluster: SlurmCluster) -> int:
    """Cancel the waiting tasks of a sweep, and stop the running ones; return their number."""
    if read_table(sweep).pack:
        going = [task for task in read_tasks(sweep, cluster, strict=True) if not task.job.over]
        if going:
            stop_all(sweep.files, place_of(sweep))
        return len(going)
    sweep.stopped.touch(mode=0o600)  # the process that starts tasks here or on Ray checks it
    going = [task for task in read_tasks(sweep, cluster, strict=True) if not task.job.over]
    known = {array.job_id for array in sweep.arrays()}
    if arrays := sorted({task.job.id.partition("_")[0] for task in going} & known, key=int):
        cluster.end_waiting(arrays)
        # From here on, no further task of the arrays can start.
        left = [task for task in read_tasks(sweep, cluster, strict=True) if not task.job.over]
        queued = {
            task.job.id: task.has_begun for task in left if task.job.id.partition("_")[0] in known
        }
        cluster.stop_tasks([job for job, has_begun in queued.items() if has_begun])
        # Tasks that have not begun have nothing to save, and do not handle signals yet.
        cluster.end_tasks([job for job, has_begun in queued.items() if not has_begun])
    for task in going:
        if task.job.id.partition("_")[0] not in known:
            stop_all(task.run, cluster_of(task.run))
    return len(going)


def find_waiting(runs: Path, name: str) -> tuple[SweepDir, int] | None:
    """Return the sweep and the index of a task without a run directory; None for other runs."""
    sweep_id, _, index = name.rpartition("-")
    if not is_task(name, sweep_id) or "/" in name or not is_sweep(runs / sweep_id):
        return None
    sweep = SweepDir.open(runs / sweep_id)
    waits = int(index) in read_table(sweep).tasks and not sweep.run(int(index)).path.exists()
    return (sweep, int(index)) if waits else None


def cancel_waiting(sweep: SweepDir, index: int, job: Job) -> None:
    """Cancel a task that has no run directory yet."""
    sweep.cancelled(index).touch(mode=0o600)
    if job.id and not read_table(sweep).pack:
        cluster = choose_cluster("slurm", sweep.path.parent)
        cluster.cancel(job.id, run_id=sweep.run_id(index))


def place_of(sweep: SweepDir) -> Cluster:
    """Return the cluster where the tasks of a sweep were started."""
    runs = sweep.path.parent
    if read_table(sweep).pack:
        known = attempts(sweep.files)
        here = bool(known) and known[-1].job_id.startswith(LOCAL)
        return choose_cluster("local" if here else "slurm", runs, tied=here)
    if not sweep.arrays():
        for index in read_table(sweep).tasks:
            if known := attempts(sweep.run(index)):
                if known[-1].job_id.startswith(LOCAL):
                    return choose_cluster("local", runs, tied=True)
                return cluster_of(sweep.run(index))
        if sweep.carrier.exists():
            place = sweep.carrier.read_text().split()[-1]
            return choose_cluster(place, runs, tied=place == "local")
    return choose_cluster("slurm", runs)


def check_home(sweep: SweepDir) -> None:
    """Check that a sweep is in the directory that its script names.

    Raises:
        ConflictError: the sweep was moved or copied.
    """
    home = find_home(sweep.files)
    if home != sweep.path.absolute() and not (home.exists() and home.samefile(sweep.path)):
        raise ConflictError(
            f"the sweep in {sweep.path} was moved or copied from {home}",
            hint=f"move it back with its runs, or use the original: --runs-dir {home.parent}",
        )
