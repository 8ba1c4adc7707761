"""A run on another host, which is queried by ssh."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from echelon.client.manage.run_jobs import RunJobs, host_jobs
from echelon.client.manage.sweeps import NEVER_STARTED
from echelon.client.remote.host_files import fetched
from echelon.client.remote.remote_calls import ask, follow_there, run_there, unexpected
from echelon.clusters.ssh.site import Site
from echelon.core.codec import decode
from echelon.core.jobs import Job
from echelon.run.directory import RunDir
from echelon.run.listing import find_run
from echelon.run.verdict import Failure, Verdict, judge


class HostedRun:
    """A run on another host.

    The directory of a task of a sweep may not exist yet.
    """

    def __init__(
        self,
        site: Site,
        run_id: str,
        *,
        trusts: bool = False,
        jobs: RunJobs | None = None,
        runs: Path | None = None,
    ) -> None:
        """Create the object without a query.

        Args:
            site: where the run is.
            run_id: its id.
            trusts: whether to read results that could execute code of that host here.
            jobs: the run's jobs; by default, the host is queried about this run.
            runs: the directory of runs on the host; by default, the host is queried.
        """
        self._site, self._runs = site, runs
        self.run_id, self.trusts, self.place = run_id, trusts, f" on {site.host}"
        self.jobs = jobs or host_jobs(self._site, self.run_id)

    def path(self) -> Path:
        """Return the run directory on the host."""
        if self._runs:
            return self._runs / self.run_id
        words = ["status", "--json", "--", self.run_id]
        return Path(ask(self._site, words, ["directory"])["directory"])

    def verdict(self, job: Job) -> Verdict | None:
        """Return why the run failed."""
        if job.reason == NEVER_STARTED:  # the run has no directory
            return judge([Failure(cause="cancelled", message=job.reason, exit_code=143)])
        found = ask(self._site, ["why", "--json", "--", self.run_id])
        try:
            return decode(Verdict, found) if found else None
        except (TypeError, ValueError, KeyError) as error:
            raise unexpected(self._site, "why", found) from error

    def end(self, *, now: bool) -> None:
        """End the run immediately, or with time to save."""
        run_there(self._site, ["cancel" if now else "stop", "--", self.run_id])
        self.jobs.forget()

    @contextmanager
    def files(self, *patterns: str) -> Iterator[RunDir]:
        """Fetch files of the run into a temporary directory."""
        with fetched(self._site, self.run_id, patterns) as runs:
            yield find_run(runs, self.run_id)

    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]:
        """Yield what ranks have printed."""
        if not follow:
            words = ["logs", *([] if rank is None else [f"--rank={rank}"]), "--", self.run_id]
            yield from run_there(self._site, words).splitlines()
            return
        left, wanted = "", {"run": self.run_id, "rank": [] if rank is None else [str(rank)]}
        with closing(follow_there(self._site, wanted)) as parts:
            for kind, value in parts:
                if kind == "out":
                    *whole, left = (left + value).split("\n")
                    yield from whole
        yield from [left] if left else []
