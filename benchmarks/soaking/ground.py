"""A temporary cluster for the long-running tests, always removed afterwards."""

import itertools
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from echelon.core.waiting import wait_until
from echelon.launch.backends.slurm.allocation import parse_time
from echelon.sandbox.lifecycle import changing
from slurm.cluster import Cluster
from slurm.survival import Chain, check_samples, start_chain, train_undisturbed

ROOT = Path(__file__).parents[2]
NAME = "soak"


@dataclass
class Report:
    """Results of one test."""

    figures: dict = field(default_factory=dict)
    """Measurement → value."""
    goals: dict = field(default_factory=dict)
    """Goal → (value, `≤` or `≥`, limit)."""
    failures: list = field(default_factory=list)
    """Failures, one sentence each."""

    @contextmanager
    def trial(self, what) -> Iterator[None]:
        """Record failures of one trial; the other trials continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  any error is a result
            said = str(error).strip() or "it did not hold"
            self.failures.append(f"{what}: {type(error).__name__}: {said[-1500:]}")
            say(f"FAILED {what}: {said[-300:]}")


@dataclass
class Ground:
    """A cluster, and a folder shared by all its nodes."""

    folder: Path
    cluster: Cluster
    environ: dict
    chains: list = field(default_factory=list)

    @property
    def box(self):
        return self.cluster.box

    def place(self, name):
        """Return a new folder."""
        path = self.folder / name
        path.mkdir()
        return path

    def chain(self, name, *options, **wanted) -> Chain:
        """Start a training in a new folder."""
        started = start_chain(self.place(name), self.environ, *options, **wanted)
        self.chains.append(started)
        return started

    def cause(self, fault, node):
        """Apply a fault to a node: `kill`, `cut` or `restore`."""
        with changing(self.box, os.geteuid()) as box:
            getattr(box, fault)(node)

    def preempt(self, name, nodes, seconds):
        """Submit a job that occupies these nodes for some time; return its id."""
        options = ("--partition=high", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}")
        script = f"#!/bin/bash\nsleep {seconds}\n"
        place = self.folder / name
        place.mkdir(exist_ok=True)
        return self.cluster.sbatch(place, script, *options, "--exclusive")

    def calm(self):
        """Cancel all jobs, and make all nodes idle again after any faults."""
        for name, node in self.cluster.nodes().items():
            if node.state.startswith("drain"):
                self.cause("restore", name)
        self.cluster.calm()

    def queue(self):
        """Return the ids of the jobs in the queue."""
        return self.cluster.exec("squeue", "--noheader", "--format=%i").split()

    def await_empty_queue(self):
        gone = wait_until(lambda: not self.queue(), timeout_s=60, interval_s=0.5)
        assert gone, f"still in the queue: {self.queue()}"

    def job_times(self, job_id):
        """Return when a job started and ended according to Slurm, in whole seconds."""
        job = self.cluster.job(job_id)
        return parse_time(job["StartTime"]), parse_time(job["EndTime"])

    def close(self):
        for chain in self.chains:
            chain.process.kill()
            chain.process.wait()
            chain.process.stdout.close()


@contextmanager
def ground(nodes):
    """Run a cluster during the block.

    Args:
        nodes: number of nodes.
    """
    folder = Path(tempfile.mkdtemp(prefix="echelon-soak-", dir="/var/tmp"))
    folder.chmod(0o755)
    cluster = Cluster(folder / "box", NAME)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    here = None
    try:
        cluster("up", "--nodes", str(nodes))
        here = Ground(folder=folder, cluster=cluster, environ=_environ(cluster, folder))
        yield here
    finally:
        if here:
            here.close()
        cluster("down", check=False)
        shutil.rmtree(folder, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def _environ(cluster, folder):
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **cluster.environ,
        "SLURM_CONF": str(cluster.box.layout.slurm_conf),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # Keep this cluster's bad nodes out of the user's own record.
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
    }


def keep_logs(here, name):
    """Copy the logs that would explain a failure to a permanent folder, and return it."""
    kept = Path(tempfile.mkdtemp(prefix=f"echelon-soak-{name}-logs-", dir="/var/tmp"))
    skipped = shutil.ignore_patterns("checkpoints", "spool", "munge", "dev", "*.sock", "socket")
    shutil.copytree(here.folder, kept / "all", ignore=skipped, dirs_exist_ok=True)
    return kept


def say(text):
    """Print the progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# --- checks and durations -----------------------------------------------------------------------


def undisturbed(here, *options, steps):
    """Return the weights of an undisturbed training."""
    return train_undisturbed(here.folder / "undisturbed", *options, steps=steps)


def check_end(chain, weights, *, steps, timeout_s):
    """Check that the training ended with the same result as an undisturbed one."""
    code, said = chain.wait(timeout_s=timeout_s)
    assert code == 0, f"it ended with {code}\n{said}"
    check_samples(chain.records(), steps)
    found = (chain.folder / "weights").read_text()
    assert found == weights, f"the weights differ: {found} and not {weights}"


def step_gaps(chain):
    """Return the seconds from the last step of each job to the first step of the next."""
    seen = {}
    for at_s, turn, _, _ in chain.timed_records():
        job = turn.partition(".")[0]
        first_s, _ = seen.get(job, (at_s, at_s))
        seen[job] = (first_s, at_s)
    times = sorted(seen.values())
    return [later[0] - earlier[1] for earlier, later in itertools.pairwise(times)]


def job_gaps(here, chain):
    """Return the seconds from the end of each job that took steps to the start of the next."""
    jobs = dict.fromkeys(turn.partition(".")[0] for turn, _, _ in chain.records())
    times = [here.job_times(job) for job in jobs]
    return [start_s - end_s for (_, end_s), (start_s, _) in itertools.pairwise(times)]


def events(chain, kind):
    """Return the data of all events of a kind, with the number of their attempt."""
    found = []
    for number in chain.attempts():
        path = chain.run / "events" / f"controller-{number}.jsonl"
        if path.exists():
            records = map(json.loads, path.read_text().splitlines())
            found += [(number, record) for record in records if record["kind"] == kind]
    return found


def spread(seconds):
    """Return median and maximum; empty if nothing was measured."""
    if not seconds:
        return {"p50_s": None, "max_s": None, "measured": 0}
    median = statistics.median(seconds)
    return {"p50_s": round(median, 2), "max_s": round(max(seconds), 2), "measured": len(seconds)}
