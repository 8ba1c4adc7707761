"""Queries the jobs of one run, or of all tasks of a sweep at once; on this machine or on a host.

A task of a sweep is a run like any other. Only its job is queried together with the jobs of the
other tasks, because one query per task would overload the cluster.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial

from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.manage.sweep_runner import has_runner
from echelon.client.manage.sweeps import read_tasks
from echelon.client.manage.waiting import LOOK_S, Outage, RunWatch, send_owed, submit_next
from echelon.client.remote.remote_calls import Retries, ask, unexpected
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.clusters.ssh.site import Site
from echelon.core.codec import decode
from echelon.core.jobs import Job
from echelon.core.shell import LocalShell
from echelon.core.slurm import Slurm, forgotten
from echelon.core.waiting import CLOCK, Cached, Clock, Retry, patient
from echelon.errors import UnavailableError
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir

_OTHERS_FIRST = Job(id="", state="PENDING", reason="other tasks come first")
_FORGOTTEN = forgotten("").reason
_SWEEP_S, _HOST_S = 1.0, 3.0
"""Seconds between two queries about all tasks of a sweep, and between two queries to a host."""

Origin = tuple[Callable[..., "RunJobs"], *tuple[object, ...]]
"""A function that returns `RunJobs`, and its arguments."""


class RunJobs:
    """The jobs of one run, or of all tasks of a sweep; they are queried when they are needed."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, Job]],
        read_ended: Callable[[], Mapping[str, Job | None]],
        retry: Retry,
        *,
        origin: Origin,
        every_s: float,
        fresh_s: float = 0.0,
        clock: Clock = CLOCK,
    ) -> None:
        """Create the object without a query.

        Args:
            read: returns the current job of each run; UNKNOWN if its cluster does not respond.
            read_ended: returns the last job of each run that has ended for certain, and None for
                each other run.
            retry: decides which errors of `read_ended` are retried.
            origin: recreates the object when it is unpickled.
            every_s: seconds between two queries while a caller waits for the end.
            fresh_s: how long an answer is reused, in seconds.
            clock: the clock.
        """
        self.every_s, self._origin = every_s, origin
        self._read = Cached(read, fresh_s, clock)
        self._read_ended = Cached(read_ended, fresh_s, clock)
        self._look = patient(self._read_ended, retry, clock)

    def __reduce__(self) -> tuple[Callable[..., "RunJobs"], tuple[object, ...]]:
        return self._origin[0], self._origin[1:]

    def job(self, run_id: str) -> Job:
        """Return the current job of a run; UNKNOWN if its cluster does not respond."""
        jobs = self._read()
        if run_id not in jobs:
            raise UnavailableError(
                f"the cluster or host did not list the run '{run_id}'",
                hint="list the runs that it knows: echelon ps",
            )
        return jobs[run_id]

    def ended(self) -> Mapping[str, Job | None]:
        """Return the last job of each run that has ended, and None for each other run.

        The result is empty while a cluster or the host does not respond.
        """
        return self._look() or {}

    def forget(self) -> None:
        """Discard the answers, so that the next call queries the cluster or host."""
        self._read.forget()
        self._read_ended.forget()


def directory_jobs(run: RunDir) -> RunJobs:
    """Return the jobs of one run on this machine.

    Waiting for the end of the run submits its next attempt if the run's jobs could not.
    """
    watch: RunWatch | None = None

    def read_ended() -> Mapping[str, Job | None]:
        nonlocal watch
        watch = watch or RunWatch(run, cluster_of(run))
        job = watch.look()
        if job and submit_next(run, watch.cluster):
            job = None
        elif job:
            send_owed(run)
            watch = None  # the run may be resumed on another cluster
        return {run.run_id: job}

    origin = (directory_jobs, run)
    return RunJobs(
        lambda: {run.run_id: Places().job(run)}, read_ended, Outage(), origin=origin, every_s=LOOK_S
    )


def sweep_jobs(sweep: SweepDir, slurm: Slurm | None = None, clock: Clock = CLOCK) -> RunJobs:
    """Return the jobs of all tasks of a sweep on this machine, wherever they run."""
    cluster = slurm or SlurmCluster(LocalShell(), os.environ)

    def read(*, strict: bool) -> dict[str, Job]:
        # Checked first, because the process may start the last task and exit meanwhile.
        starts_more = has_runner(sweep)
        tasks = read_tasks(sweep, cluster, strict=strict)
        return {
            one.run_id: _OTHERS_FIRST if starts_more and one.state == "UNSUBMITTED" else one.job
            for one in tasks
        }

    def read_ended() -> Mapping[str, Job | None]:
        return {run: job if job.over else None for run, job in read(strict=True).items()}

    return RunJobs(
        partial(read, strict=False),
        read_ended,
        Outage(),
        origin=(sweep_jobs, sweep),
        every_s=_SWEEP_S,
        fresh_s=_SWEEP_S,
        clock=clock,
    )


def host_jobs(site: Site, run_id: str, clock: Clock = CLOCK) -> RunJobs:
    """Return the jobs of one run on a host."""
    origin = (host_jobs, site, run_id)
    return _make_host_jobs(lambda: {run_id: _read_status(site, run_id)}, origin, 0.0, clock)


def host_sweep_jobs(site: Site, sweep_id: str) -> RunJobs:
    """Return the jobs of all tasks of a sweep on a host."""
    origin = (host_sweep_jobs, site, sweep_id)
    return _make_host_jobs(partial(_read_sweep, site, sweep_id), origin, _HOST_S)


def _make_host_jobs(
    read: Callable[[], Mapping[str, Job]], origin: Origin, fresh_s: float, clock: Clock = CLOCK
) -> RunJobs:
    def read_ended() -> Mapping[str, Job | None]:
        # A job is UNKNOWN if the host's cluster does not respond, or has forgotten an ended job.
        return {
            run: job if job.over and (job.state != "UNKNOWN" or job.reason == _FORGOTTEN) else None
            for run, job in read().items()
        }

    return RunJobs(
        read,
        read_ended,
        Retries(clock),
        origin=origin,
        every_s=_HOST_S,
        fresh_s=fresh_s,
        clock=clock,
    )


def _read_status(site: Site, run_id: str) -> Job:
    found = ask(site, ["status", "--json", "--", run_id], ["job", "state", "exit_code"])
    return decode(Job, {**found, "id": found["job"]})


def _read_sweep(site: Site, sweep_id: str) -> dict[str, Job]:
    found = ask(site, ["sweep", "status", "--json", "--", sweep_id], ["runs"])["runs"]
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise unexpected(site, "sweep status", found)
    return {run: decode(Job, {**one, "id": one.get("job")}) for run, one in found.items()}
