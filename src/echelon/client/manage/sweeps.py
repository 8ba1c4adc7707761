"""Query, stop and resume sweeps: many runs of one request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.manage.relocation import find_home
from echelon.client.manage.run_status import current_job, find_verdict
from echelon.client.manage.waiting import stop_all
from echelon.client.remote.register import is_task
from echelon.client.submit.target import choose_cluster
from echelon.clusters.base import Cluster
from echelon.clusters.local import PREFIX
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.frozen import frozen
from echelon.core.jobs import WAITING, Job, is_job_id
from echelon.core.slurm import Slurm, forgotten, mark_tasks
from echelon.errors import ConflictError, UnavailableError
from echelon.run.attempts import Attempt, attempts, outcome
from echelon.run.directory import RunDir
from echelon.run.sweep import (
    SweepDir,
    is_sweep,
    read_table,
)
from echelon.run.verdict import Verdict

# --- query -----------------------------------------------------------------------------------


@frozen
class Task:
    """One run of a sweep."""

    index: int
    parameters: Mapping[str, str]
    run: RunDir
    """Its directory may not exist yet."""
    job: Job
    verdict: Verdict | None
    """Why it failed; None if it has not."""

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def state(self) -> str:
        return self.job.state

    @property
    def has_begun(self) -> bool:
        """Whether its current job has recorded itself in the run's directory."""
        known = (attempt.job_id for attempt in attempts(self.run))
        return self.state not in WAITING and self.job.id in known

    @property
    def is_left(self) -> bool:
        """Whether the task has ended, or never began, and is not complete."""
        return self.job.over and self.state != "COMPLETED"


def read_tasks(sweep: SweepDir, slurm: Slurm, *, strict: bool = False) -> list[Task]:
    """Return all tasks of a sweep, with at most one question to Slurm and one to its accounting.

    Args:
        sweep: the sweep.
        slurm: the cluster.
        strict: raise if the cluster does not respond, instead of showing what is known.

    Raises:
        UnavailableError: the cluster does not respond.
    """
    table, open_tasks = read_table(sweep), {}
    latest = {task: one.job_of(task) for one in sweep.arrays() for task in one.tasks}
    for index in table.tasks:
        open_tasks[index] = _Open(sweep.run(index), latest.get(index, ""))
    places = Places()
    jobs, away = _ask(sweep, [one for one in open_tasks.values() if not one.is_complete], slurm)
    if away is not None and strict:
        raise away
    reason = away.message if away else ""
    found = []
    for index, one in open_tasks.items():
        job = one.find_job(jobs, places, reason)
        # Slurm keeps no record of a waiting task that was cancelled.
        gone = job.state in ("UNKNOWN", "UNSUBMITTED") and not one.last and not reason
        if gone and sweep.cancelled(index).exists():
            job = replace(job, state="CANCELLED", reason=NEVER_STARTED)
        failed = job.over and job.state not in ("COMPLETED", "UNSUBMITTED", "UNKNOWN")
        verdict = find_verdict(one.run, job) if failed else None
        parameters = table.parameters(index)
        found.append(
            Task(index=index, parameters=parameters, run=one.run, job=job, verdict=verdict)
        )
    return found


class _Open:
    """A task whose state is looked for."""

    def __init__(self, run: RunDir, queued: str) -> None:
        """See the class.

        Args:
            run: its run.
            queued: its job in the newest array; empty if there is none.
        """
        self.run, self._queued = run, queued
        self._attempts = attempts(run)
        self._ended = outcome(run, self._attempts[-1].number) if self._attempts else None
        self.is_complete = self._ended is not None and self._ended.state == "COMPLETED"

    @property
    def last(self) -> Attempt | None:
        return self._attempts[-1] if self._attempts else None

    @property
    def wanted(self) -> str:
        """The job to ask Slurm for; empty if another cluster has it."""
        if self._queued and all(one.job_id != self._queued for one in self._attempts):
            return self._queued  # it has not started yet, or never did
        if self.last and is_job_id(self.last.job_id) and ":" not in self.last.job_id:
            return self.last.job_id
        return ""

    @property
    def is_final(self) -> bool:
        """Whether the files tell how the wanted job ended."""
        same = self.last is not None and self.last.job_id == self.wanted
        return same and self._ended is not None and not self._ended.next

    def find_job(self, jobs: Mapping[str, Job], places: Places, away: str) -> Job:
        if self.is_complete and self.last:
            return Job(id=self.last.job_id, state="COMPLETED")
        if not self.wanted:
            return places.job(self.run) if self.run.path.is_dir() else _UNSUBMITTED
        if self.last and (self.last.job_id == self.wanted or self.wanted not in jobs):
            return current_job(self.run, _Answers(jobs, away))
        return _Answers(jobs, away).job(self.wanted, run_id=self.run.run_id)


NEVER_STARTED = "it was never started"
_UNSUBMITTED = Job(id="", state="UNSUBMITTED", reason="never submitted")


class _Answers:
    """What Slurm has answered, as a cluster."""

    def __init__(self, jobs: Mapping[str, Job], away: str) -> None:
        self._jobs, self._away = jobs, away

    def job(self, job_id: str, *, run_id: str) -> Job:  # noqa: ARG002  checked when it was asked
        if self._away:
            return Job(id=job_id, state="UNKNOWN", reason=self._away)
        return self._jobs.get(job_id) or forgotten(job_id)


def _ask(
    sweep: SweepDir, tasks: Sequence[_Open], slurm: Slurm
) -> tuple[dict[str, Job], UnavailableError | None]:
    """Ask Slurm for the jobs of all tasks; return them, or why there is no answer."""
    owners: dict[str, str] = {}
    arrays = {array.job_id for array in sweep.arrays()}
    for task in tasks:
        array = task.wanted.partition("_")[0]
        if array in arrays:
            owners[array] = mark_tasks(sweep.sweep_id)
        elif task.wanted:  # it was resumed by itself
            owners[task.wanted] = task.run.run_id
    needed = [task.wanted for task in tasks if task.wanted and not task.is_final]
    try:
        return slurm.jobs(owners, needed), None
    except UnavailableError as error:
        return {}, error


# --- stop and resume -------------------------------------------------------------------------


def stop_sweep(sweep: SweepDir, cluster: SlurmCluster) -> int:
    """End the waiting tasks of a sweep, and ask those that run to stop; return their number."""
    sweep.stopped.touch(mode=0o600)  # whoever starts tasks on this machine or on Ray stops too
    going = [task for task in read_tasks(sweep, cluster, strict=True) if not task.job.over]
    known = {array.job_id for array in sweep.arrays()}
    if arrays := sorted({task.job.id.partition("_")[0] for task in going} & known, key=int):
        cluster.end_waiting(arrays)
        # Only now it is certain that no further task starts.
        left = [task for task in read_tasks(sweep, cluster, strict=True) if not task.job.over]
        queued = {
            task.job.id: task.has_begun for task in left if task.job.id.partition("_")[0] in known
        }
        cluster.stop_tasks([job for job, has_begun in queued.items() if has_begun])
        # The others have nothing to save, and do not react to signals yet.
        cluster.end_tasks([job for job, has_begun in queued.items() if not has_begun])
    for task in going:
        if task.job.id.partition("_")[0] not in known:
            stop_all(task.run, cluster_of(task.run))
    return len(going)


def find_waiting(runs: Path, name: str) -> tuple[SweepDir, int] | None:
    """Return the sweep and the index of a task that has no run directory yet; None if it has."""
    sweep_id, _, index = name.rpartition("-")
    if not is_task(name, sweep_id) or "/" in name or not is_sweep(runs / sweep_id):
        return None
    sweep = SweepDir.open(runs / sweep_id)
    waits = int(index) in read_table(sweep).tasks and not sweep.run(int(index)).path.exists()
    return (sweep, int(index)) if waits else None


def cancel_waiting(sweep: SweepDir, index: int, job: Job) -> None:
    """Cancel a task that has no run directory yet."""
    sweep.cancelled(index).touch(mode=0o600)
    if job.id:
        cluster = choose_cluster("slurm", sweep.path.parent)
        cluster.cancel(job.id, run_id=sweep.run_id(index))


def place_of(sweep: SweepDir) -> Cluster:
    """Return the cluster where the tasks of a sweep were started."""
    runs = sweep.path.parent
    if not sweep.arrays():
        for index in read_table(sweep).tasks:
            if known := attempts(sweep.run(index)):
                here = known[-1].job_id.startswith(PREFIX)
                run = sweep.run(index)
                return choose_cluster("local", runs, tied=True) if here else cluster_of(run)
        if sweep.carrier.exists():
            place = sweep.carrier.read_text().split()[-1]
            return choose_cluster(place, runs, tied=place == "local")
    return choose_cluster("slurm", runs)


def check_home(sweep: SweepDir) -> None:
    """Check that a sweep was neither moved nor copied: its script names its directory.

    Raises:
        ConflictError: it was.
    """
    home = find_home(sweep.files)
    if home != sweep.path.absolute() and not (home.exists() and home.samefile(sweep.path)):
        raise ConflictError(
            f"the sweep in {sweep.path} was moved or copied from {home}",
            hint=f"move it back with its runs, or use the original: --runs-dir {home.parent}",
        )
