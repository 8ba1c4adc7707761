"""The jobs of runs: of one run, or of all tasks of a sweep from one question; here or on a host.

A task of a sweep is a run like any other. Only its job is found in another way: together with those
of the other tasks, because one question per task would overload the cluster.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from echelon.client.manage.clusters import Places, cluster_of
from echelon.client.manage.sweep_runner import has_runner
from echelon.client.manage.sweeps import read_tasks
from echelon.client.manage.waiting import LOOK_S, Outage, RunWatch, send_owed, submit_next
from echelon.client.remote.remote_calls import Retries, ask, unexpected
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.clusters.ssh.site import Site
from echelon.core.jobs import Job
from echelon.core.shell import LocalShell
from echelon.core.slurm import Slurm, forgotten
from echelon.core.waiting import CLOCK, Cached, Clock, patient
from echelon.run.directory import RunDir
from echelon.run.sweep import SweepDir

_OTHERS_FIRST = Job(id="", state="PENDING", reason="other tasks come first")


class RunJobs(Protocol):
    """Knows the jobs of one run, or of all tasks of a sweep."""

    every_s: float
    """Seconds between two questions while something waits for the end."""

    def job(self, run_id: str) -> Job:
        """Return the current job of a run; UNKNOWN if the cluster does not respond."""

    def ended(self) -> Mapping[str, Job | None]:
        """Return the last job of each run that has ended, and None for others.

        It is empty while the cluster or the host does not respond.
        """

    def forget(self) -> None:
        """Ask again the next time."""


class DirectoryJobs:
    """The jobs of one run on this machine; submits the next one if the run cannot."""

    every_s = LOOK_S

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._watch: RunWatch | None = None

    def job(self, run_id: str) -> Job:  # noqa: ARG002  there is one run
        return Places().job(self._run)

    def ended(self) -> Mapping[str, Job | None]:
        cluster = cluster_of(self._run)
        self._watch = self._watch or RunWatch(self._run, cluster)
        job = self._watch.look()
        if job and submit_next(self._run, cluster):
            job = None
        elif job:
            send_owed(self._run)
        return {self._run.run_id: job}

    def forget(self) -> None:
        self._watch = None


class SweepJobs:
    """The jobs of all tasks of a sweep on this machine, wherever they run."""

    every_s = 1.0

    def __init__(self, sweep: SweepDir, slurm: Slurm | None = None, clock: Clock = CLOCK) -> None:
        self.sweep = sweep
        self._slurm = slurm or SlurmCluster(LocalShell(), os.environ)
        self._shown = Cached(partial(self._read, strict=False), self.every_s, clock)
        self._certain = Cached(partial(self._read, strict=True), self.every_s, clock)
        self._look = patient(self._certain, Outage(), clock)

    def _read(self, *, strict: bool) -> dict[str, Job]:
        # Asked first, because the process may start the last task and exit meanwhile.
        starts_more = has_runner(self.sweep)
        tasks = read_tasks(self.sweep, self._slurm, strict=strict)
        return {
            one.run_id: _OTHERS_FIRST if starts_more and one.state == "UNSUBMITTED" else one.job
            for one in tasks
        }

    def job(self, run_id: str) -> Job:
        return self._shown()[run_id]

    def ended(self) -> Mapping[str, Job | None]:
        return {run: job if job.over else None for run, job in (self._look() or {}).items()}

    def forget(self) -> None:
        self._shown.forget()
        self._certain.forget()


class HostJobs:
    """The jobs of runs on a host. The connection may break while something waits."""

    every_s = 3.0

    def __init__(
        self,
        site: Site,
        read: Callable[[], Mapping[str, Job]],
        fresh_s: float,
        clock: Clock = CLOCK,
    ) -> None:
        """Create it; nothing is asked yet.

        Args:
            site: the host.
            read: asks it for the jobs, by run.
            fresh_s: how long an answer is used, in seconds.
            clock: the clock.
        """
        self._site = site
        self._jobs = Cached(read, fresh_s, clock)
        self._look = patient(self._jobs, Retries(clock), clock)

    @classmethod
    def of_run(cls, site: Site, run_id: str) -> "HostJobs":
        """Return the jobs of one run."""
        return cls(site, lambda: {run_id: _read_status(site, run_id)}, 0.0)

    @classmethod
    def of_sweep(cls, site: Site, sweep_id: str) -> "HostJobs":
        """Return the jobs of all tasks of a sweep."""
        return cls(site, partial(_read_sweep, site, sweep_id), cls.every_s)

    def job(self, run_id: str) -> Job:
        found = self._jobs()
        if run_id not in found:
            raise unexpected(self._site, "sweep status", sorted(found))
        return found[run_id]

    def ended(self) -> Mapping[str, Job | None]:
        return {run: job if _is_final(job) else None for run, job in (self._look() or {}).items()}

    def forget(self) -> None:
        self._jobs.forget()


def _read_status(site: Site, run_id: str) -> Job:
    found = ask(site, ["status", "--json", "--", run_id], ["job", "state", "exit_code"])
    facts = {name: str(found.get(name) or "") for name in ("state", "reason", "nodes")}
    code = found["exit_code"]
    return Job(id=str(found["job"]), exit_code=code if isinstance(code, int) else 0, **facts)


def _read_sweep(site: Site, sweep_id: str) -> dict[str, Job]:
    found = ask(site, ["sweep", "status", "--json", "--", sweep_id], ["runs"])["runs"]
    if not found or not isinstance(found, dict):
        raise unexpected(site, "sweep status", found)
    jobs = {}
    for run_id, one in found.items():
        if not isinstance(one, dict):
            raise unexpected(site, "sweep status", found)
        number, state, reason = (str(one.get(name) or "") for name in ("job", "state", "reason"))
        jobs[run_id] = Job(id=number, state=state, reason=reason)
    return jobs


def _is_final(job: Job) -> bool:
    """Tell whether a job on a host has ended.

    UNKNOWN: the cluster does not respond there, unless it has forgotten the job.
    """
    return job.over and (job.state != "UNKNOWN" or job.reason == forgotten("").reason)
