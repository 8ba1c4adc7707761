"""Where the long tests happen: a cluster of their own that is gone afterwards, whatever happens."""

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
    """What one of the tests has found."""

    figures: dict = field(default_factory=dict)
    """What was measured → its value."""
    goals: dict = field(default_factory=dict)
    """What was aimed at → (value, `≤` or `≥`, limit)."""
    failures: list = field(default_factory=list)
    """What went wrong, each in a sentence."""

    @contextmanager
    def trial(self, what) -> Iterator[None]:
        """Write down what goes wrong in one trial; the others go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, it is a result
            said = str(error).strip() or "it did not hold"
            self.failures.append(f"{what}: {type(error).__name__}: {said[-1500:]}")
            say(f"FAILED {what}: {said[-300:]}")


@dataclass
class Ground:
    """A cluster, and a folder that all its nodes see."""

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
        """Start a training in a folder of its own."""
        started = start_chain(self.place(name), self.environ, *options, **wanted)
        self.chains.append(started)
        return started

    def cause(self, fault, node):
        """Do something to a node: `kill`, `cut`, `restore`."""
        with changing(self.box, os.geteuid()) as box:
            getattr(box, fault)(node)

    def preempt(self, name, nodes, seconds):
        """Submit a job that takes these nodes for some time; return its id."""
        options = ("--partition=high", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}")
        script = f"#!/bin/bash\nsleep {seconds}\n"
        place = self.folder / name
        place.mkdir(exist_ok=True)
        return self.cluster.sbatch(place, script, *options, "--exclusive")

    def calm(self):
        """End all jobs, and have all nodes idle, whatever was done to them."""
        for name, node in self.cluster.nodes().items():
            if node.state.startswith("drain"):
                self.cause("restore", name)
        self.cluster.calm()

    def queue(self):
        """Return the ids of the jobs that are in the queue."""
        return self.cluster.exec("squeue", "--noheader", "--format=%i").split()

    def await_empty_queue(self):
        gone = wait_until(lambda: not self.queue(), timeout_s=60, interval_s=0.5)
        assert gone, f"still in the queue: {self.queue()}"

    def job_times(self, job_id):
        """Return when a job started and ended by Slurm, in whole seconds."""
        job = self.cluster.job(job_id)
        return parse_time(job["StartTime"]), parse_time(job["EndTime"])

    def close(self):
        for chain in self.chains:
            chain.process.kill()
            chain.process.wait()
            chain.process.stdout.close()


@contextmanager
def ground(nodes):
    """Have a cluster while the block lasts.

    Args:
        nodes: how many it has.
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
        # Bad nodes of this cluster are nobody else's business.
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
    }


def keep_logs(here, name):
    """Copy what would explain a failure to where it stays; return the folder."""
    kept = Path(tempfile.mkdtemp(prefix=f"echelon-soak-{name}-logs-", dir="/var/tmp"))
    skipped = shutil.ignore_patterns("checkpoints", "spool", "munge", "dev", "*.sock", "socket")
    shutil.copytree(here.folder, kept / "all", ignore=skipped, dirs_exist_ok=True)
    return kept


def say(text):
    """Tell how far it is."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# --- what must be true, and how long things took ------------------------------------------------


def undisturbed(here, *options, steps):
    """Return the weights of a training that nothing happened to."""
    return train_undisturbed(here.folder / "undisturbed", *options, steps=steps)


def check_end(chain, weights, *, steps, timeout_s):
    """Make sure that the training has ended as if nothing had happened."""
    code, said = chain.wait(timeout_s=timeout_s)
    assert code == 0, f"it ended with {code}\n{said}"
    check_samples(chain.records(), steps)
    found = (chain.folder / "weights").read_text()
    assert found == weights, f"the weights differ: {found} and not {weights}"


def step_gaps(chain):
    """Return seconds from the last step of each job to the first of the next, by their starts."""
    seen = {}
    for at_s, turn, _, _ in chain.timed_records():
        job = turn.partition(".")[0]
        first_s, _ = seen.get(job, (at_s, at_s))
        seen[job] = (first_s, at_s)
    times = sorted(seen.values())
    return [later[0] - earlier[1] for earlier, later in itertools.pairwise(times)]


def job_gaps(here, chain):
    """Return seconds from the end of each job that took steps to the start of the next."""
    jobs = dict.fromkeys(turn.partition(".")[0] for turn, _, _ in chain.records())
    times = [here.job_times(job) for job in jobs]
    return [start_s - end_s for (_, end_s), (start_s, _) in itertools.pairwise(times)]


def events(chain, kind):
    """Return the data of all events of a kind, of all attempts, with the attempt's number."""
    found = []
    for number in chain.attempts():
        path = chain.run / "events" / f"controller-{number}.jsonl"
        if path.exists():
            records = map(json.loads, path.read_text().splitlines())
            found += [(number, record) for record in records if record["kind"] == kind]
    return found


def spread(seconds):
    """Return median and maximum; nothing where nothing was measured."""
    if not seconds:
        return {"p50_s": None, "max_s": None, "measured": 0}
    median = statistics.median(seconds)
    return {"p50_s": round(median, 2), "max_s": round(max(seconds), 2), "measured": len(seconds)}
