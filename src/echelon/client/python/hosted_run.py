"""A run on another host, and what can be asked of it: each question goes there, by ssh."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from echelon.client.manage.sweeps import NEVER_STARTED
from echelon.client.python.local_run import is_function, read_metrics
from echelon.client.python.results import read_results
from echelon.client.remote.host_files import fetched
from echelon.client.remote.remote_calls import Retries, ask, follow_there, run_there, unexpected
from echelon.clusters.ssh.site import Site
from echelon.core.codec import decode
from echelon.core.jobs import Job
from echelon.core.slurm import forgotten
from echelon.errors import EchelonError, NotFoundError, TimedOutError
from echelon.launch.function_call import RESULTS, name_result
from echelon.run.listing import find_run
from echelon.run.verdict import Failure, Verdict, judge

_ASK_S = 3.0
"""Seconds between two questions about a run that is waited for."""


class HostedRun:
    """A run on another host."""

    def __init__(self, site: Site, run_id: str, *, trusts: bool = False) -> None:
        """See the class.

        Args:
            site: where it is.
            run_id: its id.
            trusts: whether to read results that could execute code of that host here.
        """
        self._site, self._run_id, self._trusts = site, run_id, trusts

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def path(self) -> Path:
        return Path(self._status()["directory"])

    @property
    def place(self) -> str:
        return f" on {self._site.host}"

    def _status(self) -> dict[str, Any]:
        keys = ("directory", "job", "state", "exit_code")
        return ask(self._site, ["status", "--json", "--", self._run_id], keys)

    def job(self) -> Job:
        """Return the current job."""
        found = self._status()
        facts = {name: str(found.get(name) or "") for name in ("state", "reason", "nodes")}
        code = found["exit_code"]
        return Job(id=str(found["job"]), exit_code=code if isinstance(code, int) else 0, **facts)

    def wait(self, until_s: float) -> Job:
        """Wait for the run's end; the connection may break meanwhile."""
        retries = Retries(until_s)
        while True:
            retries.begin()
            try:
                job = self.job()
            except EchelonError as error:
                retries.pause(error)
                continue
            retries.succeed()
            # UNKNOWN: the cluster does not respond, unless it has forgotten the job.
            if job.over and (job.state != "UNKNOWN" or job.reason == forgotten("").reason):
                return job
            if time.monotonic() >= until_s:
                raise TimedOutError(
                    f"the run '{self._run_id}' has not ended in time: it is {job.state}",
                    hint="it continues: wait again, or stop it",
                )
            time.sleep(min(_ASK_S, max(0.0, until_s - time.monotonic())))

    def results(self, *, every: bool) -> list[Any]:
        """Return the results of a completed run, as plain data unless the host is trusted."""
        with fetched(self._site, self._run_id, ["spec.toml"]) as runs:
            if not is_function(find_run(runs, self._run_id)):
                return [None]
        plain = not self._trusts
        first = name_result(0, plain=plain)
        wanted = f"{RESULTS}/{f'*{Path(first).suffix}' if every else first}"
        with fetched(self._site, self._run_id, ["spec.toml", wanted]) as runs:
            return read_results(find_run(runs, self._run_id), every=every, plain=plain)

    def verdict(self, job: Job) -> Verdict | None:  # noqa: ARG002  the host knows it
        """Return why the run failed."""
        found = ask(self._site, ["why", "--json", "--", self._run_id])
        try:
            return decode(Verdict, found) if found else None
        except (TypeError, ValueError, KeyError) as error:
            raise unexpected(self._site, "why", found) from error

    def stop(self) -> None:
        run_there(self._site, ["stop", "--", self._run_id])

    def cancel(self) -> None:
        run_there(self._site, ["cancel", "--", self._run_id])

    def lines(self, *, follow: bool, rank: int | None) -> Iterator[str]:
        """Yield what ranks have printed."""
        if not follow:
            words = ["logs", *([] if rank is None else [f"--rank={rank}"]), "--", self._run_id]
            yield from run_there(self._site, words).splitlines()
            return
        left, wanted = "", {"run": self._run_id, "rank": rank}
        with closing(follow_there(self._site, wanted)) as frames:
            for kind, value in frames:
                if kind == "out":
                    *whole, left = (left + value).split("\n")
                    yield from whole
        yield from [left] if left else []

    def metrics(self) -> dict[str, list[float]]:
        """Return what was logged, in columns."""
        try:
            with fetched(self._site, self._run_id, ["spec.toml", "metrics.jsonl"]) as runs:
                return read_metrics(find_run(runs, self._run_id))
        except NotFoundError:  # it has logged nothing
            return {"step": []}


class HostedTasks:
    """The tasks of a sweep on another host, which are asked about together."""

    def __init__(self, site: Site, sweep_id: str, folder: Path) -> None:
        """See the class.

        Args:
            site: where it is.
            sweep_id: its id.
            folder: the directory of runs there.
        """
        self.site, self.sweep_id, self.folder = site, sweep_id, folder
        self._known: dict[str, Any] = {}
        self._asked_s = -_ASK_S

    def job(self, run_id: str) -> Job:
        """Return the job of a task."""
        if time.monotonic() - self._asked_s >= _ASK_S:
            found = ask(self.site, ["sweep", "status", "--json", "--", self.sweep_id], ["runs"])
            if not isinstance(found["runs"], dict):
                raise unexpected(self.site, "sweep status", found)
            self._known, self._asked_s = found["runs"], time.monotonic()
        one = self._known.get(run_id)
        if not isinstance(one, dict):
            raise unexpected(self.site, "sweep status", self._known)
        number, state, reason = (str(one.get(name) or "") for name in ("job", "state", "reason"))
        return Job(id=number, state=state, reason=reason)

    def forget(self) -> None:
        """Ask again the next time."""
        self._asked_s = -_ASK_S


class HostedTask(HostedRun):
    """A task of a sweep on another host; its run directory may not exist yet."""

    def __init__(self, tasks: HostedTasks, index: int, *, trusts: bool = False) -> None:
        super().__init__(tasks.site, f"{tasks.sweep_id}-{index}", trusts=trusts)
        self._tasks = tasks

    @property
    def path(self) -> Path:
        return self._tasks.folder / self.run_id

    def job(self) -> Job:
        """Return the task's job."""
        return self._tasks.job(self.run_id)

    def verdict(self, job: Job) -> Verdict | None:
        """Return why the task failed."""
        if job.reason == NEVER_STARTED:  # it has no directory
            return judge([Failure(cause="cancelled", message=job.reason, exit_code=143)])
        return super().verdict(job)

    def stop(self) -> None:
        super().stop()
        self._tasks.forget()

    def cancel(self) -> None:
        super().cancel()
        self._tasks.forget()
