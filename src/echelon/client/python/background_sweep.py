"""Starts sweeps from Python, whose tasks call a function with different arguments.

On Slurm, a sweep is one job array. On this machine and on Ray, a process in the background starts
the tasks, as many at a time as requested (`main`).
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from echelon.client.manage.run_jobs import sweep_jobs
from echelon.client.manage.sweep_runner import record_runner, run
from echelon.client.python.local_run import LocalRun
from echelon.client.submit.arrays import submit_sweep
from echelon.client.submit.pipeline import Prepared
from echelon.client.submit.target import Target, choose_cluster
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.shell import LocalShell
from echelon.run.sweep import SweepDir, read_table


def start_mapped(prepared: Prepared, target: Target) -> list[LocalRun]:
    """Start all tasks of a new sweep, and return their runs."""
    assert prepared.table is not None, "only for sweeps"
    sweep, count = prepared.sweep, len(prepared.table.tasks)
    if isinstance(prepared.cluster, SlurmCluster):
        with sweep.locked():
            submit_sweep(sweep, prepared.cluster, os.environ)
    else:
        at_once = prepared.table.max_running or (1 if target.on == "local" else count)
        argv = [sys.executable, "-P", "-m", __name__, str(sweep.path), target.on, target.address]
        log = sweep.path / "carrier.log"
        pid = LocalShell().start([*argv, str(at_once)], log=log, env=dict(os.environ))
        record_runner(sweep, pid, target.on)
    jobs = sweep_jobs(sweep)
    return [LocalRun(sweep.run(index), jobs=jobs) for index in prepared.table.tasks]


def main(words: Sequence[str]) -> None:
    """Run the tasks of a sweep."""
    path, on, address, count = words
    sweep = SweepDir.open(Path(path))
    cluster = choose_cluster(on, sweep.path.parent, address=address)
    indices = list(read_table(sweep).tasks)
    run(sweep, cluster, os.environ, indices, at_once=int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
