"""Many runs at once from Python: a sweep whose tasks call a function with other arguments.

On Slurm it is one job array. On this machine and on Ray, a process in the background starts the
tasks, as many at a time as requested (`main`).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.client.manage.run_jobs import sweep_jobs
from echelon.client.manage.sweep_runner import record_runner, run
from echelon.client.manage.sweeps import create_sweep, submit_sweep
from echelon.client.python.local_run import LocalRun
from echelon.client.submit.places import choose_cluster
from echelon.client.submit.submission import Place
from echelon.clusters.base import Cluster
from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.shell import LocalShell
from echelon.run.sweep import SweepDir, read_table
from echelon.spec.job_spec import JobSpec


def start_mapped(
    spec: JobSpec,
    rows: Sequence[Mapping[str, str]],
    place: Place,
    cluster: Cluster,
    *,
    added: Mapping[str, bytes] | None = None,
    max_running: int = 0,
) -> list[LocalRun]:
    """Start a sweep, and return its runs."""
    sweep = create_sweep(spec, rows, place.runs, added=added, max_running=max_running)
    if isinstance(cluster, SlurmCluster):
        with sweep.locked():
            submit_sweep(sweep, cluster, os.environ)
    else:
        count = max_running or (1 if place.on == "local" else len(rows))
        argv = [sys.executable, "-P", "-m", __name__, str(sweep.path), place.on, place.address]
        log = sweep.path / "carrier.log"
        pid = LocalShell().start([*argv, str(count)], log=log, env=dict(os.environ))
        record_runner(sweep, pid, place.on)
    jobs = sweep_jobs(sweep)
    return [LocalRun(sweep.run(index), jobs=jobs) for index in range(len(rows))]


def main(words: Sequence[str]) -> None:
    """Run the tasks of a sweep."""
    path, on, address, count = words
    sweep = SweepDir.open(Path(path))
    cluster = choose_cluster(on, sweep.path.parent, address=address)
    indices = list(read_table(sweep).tasks)
    run(sweep, cluster, os.environ, indices, at_once=int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
