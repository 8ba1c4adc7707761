"""Many runs at once from Python: a sweep whose tasks call a function with other arguments.

On Slurm it is one job array. On this machine and on Ray, a process in the background starts the
tasks, as many at a time as requested (`main`).
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from echelon.client.manage.sweep_runner import carry_out, is_carried, record_carrier
from echelon.client.manage.sweeps import Task, cancel_waiting, read_tasks
from echelon.client.python.local_run import LocalRun
from echelon.client.submit.arrays import submit_sweep
from echelon.client.submit.pipeline import Prepared
from echelon.client.submit.target import Target, choose_cluster
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.jobs import Job
from echelon.core.shell import LocalShell
from echelon.errors import TimedOutError, UnavailableError
from echelon.run.sweep import SweepDir, read_table

_FRESH_S = 1.0
"""How long an answer about all tasks counts."""


def start_mapped(prepared: Prepared, target: Target) -> list["MappedRun"]:
    """Start all tasks of a new sweep, and return their runs."""
    assert prepared.table is not None, "the caller knows that it is a sweep"
    sweep, count = prepared.sweep, len(prepared.table.tasks)
    if isinstance(prepared.cluster, SlurmCluster):
        with sweep.locked():
            submit_sweep(sweep, prepared.cluster, os.environ)
    else:
        at_once = prepared.table.max_running or (1 if target.on == "local" else count)
        argv = [sys.executable, "-P", "-m", __name__, str(sweep.path), target.on, target.address]
        log = sweep.path / "carrier.log"
        pid = LocalShell().start([*argv, str(at_once)], log=log, env=dict(os.environ))
        record_carrier(sweep, pid, target.on)
    tasks = MappedTasks(sweep)
    return [MappedRun(tasks, index) for index in prepared.table.tasks]


class MappedTasks:
    """The tasks of a sweep, which are asked about together."""

    def __init__(self, sweep: SweepDir) -> None:
        self.sweep = sweep
        self._slurm = SlurmCluster(LocalShell(), os.environ)
        self._known: dict[int, Task] = {}
        self._asked_s = -_FRESH_S

    def job(self, index: int, *, strict: bool = False) -> Job:
        """Return the job of a task; see `read_tasks`."""
        if strict or time.monotonic() - self._asked_s >= _FRESH_S:
            self._ask(strict=strict)
        if self._known[index].state == "UNSUBMITTED":
            if is_carried(self.sweep):
                return Job(id="", state="PENDING", reason="other tasks come first")
            self._ask(strict=strict)  # it may have been the last one, and have begun meanwhile
        return self._known[index].job

    def _ask(self, *, strict: bool) -> None:
        tasks = read_tasks(self.sweep, self._slurm, strict=strict)
        self._known = {one.index: one for one in tasks}
        self._asked_s = time.monotonic()

    def forget(self) -> None:
        """Ask again the next time."""
        self._asked_s = -_FRESH_S


class MappedRun(LocalRun):
    """A task of a sweep; its run directory may not exist yet."""

    def __init__(self, tasks: MappedTasks, index: int) -> None:
        super().__init__(tasks.sweep.run(index))
        self._tasks, self._index = tasks, index

    def job(self) -> Job:
        """Return the task's job."""
        return self._tasks.job(self._index)

    def wait(self, until_s: float) -> Job:
        """Wait for the task's end."""
        while True:
            job = self.job()
            if job.state == "UNKNOWN":  # Slurm does not respond, or has forgotten the job
                with suppress(UnavailableError):
                    return self._tasks.job(self._index, strict=True)
            elif job.over:
                return job
            if time.monotonic() >= until_s:
                raise TimedOutError(
                    f"the run '{self.run_id}' has not ended in time: it is {job.state}",
                    hint="it continues: wait again, or stop it",
                )
            time.sleep(min(_FRESH_S, max(0.0, until_s - time.monotonic())))

    def cancel(self) -> None:
        job = self.job()
        if self.path.exists():
            super().cancel()
        elif not job.over:
            cancel_waiting(self._tasks.sweep, self._index, job)
        self._tasks.forget()

    def stop(self) -> None:
        if self.path.exists():
            super().stop()
            self._tasks.forget()
        else:
            self.cancel()


def main(words: Sequence[str]) -> None:
    """Carry out the tasks of a sweep."""
    path, on, address, count = words
    sweep = SweepDir.open(Path(path))
    cluster = choose_cluster(on, sweep.path.parent, address=address)
    indices = list(read_table(sweep).tasks)
    carry_out(sweep, cluster, os.environ, indices, at_once=int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
