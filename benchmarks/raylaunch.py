"""Launch time on a Ray cluster: Echelon and Ray Train, alternating.

    .venv/bin/python benchmarks/raylaunch.py [--trials N]

On a Ray cluster with a head and two nodes on this machine, 2 nodes × 2 ranks (gloo) join and
all-reduce. Measures from submission to the first all-reduce, for `echelon submit --on ray` and for
`ray job submit` of a script with a TorchTrainer of four workers. Writes
benchmarks/results/raylaunch.json.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import measuring
from measuring import ECHELON, SCRIPTS, ratio, summary, workshop

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from raycluster import BIN, RayNodes

OURS = "echelon submit --on ray, 2 nodes × 2"
THEIRS = "Ray Train's TorchTrainer as a job, 4 workers"
LIMIT_S = 180


def submit_ours(cluster, mark):
    argv = [*ECHELON, "submit", "--wait", *cluster.here, "--nodes=2", "--procs=2"]
    return [*argv, str(SCRIPTS / "first.py"), str(mark)]


def submit_theirs(cluster, mark):
    argv = [str(BIN / "ray"), "job", "submit", f"--address={cluster.api}", "--"]
    script = [sys.executable, str(SCRIPTS / "ray_first.py"), "4", str(mark)]
    return [*argv, "env", "-C", str(mark.parent), *script]


def time_one(cluster, folder, argv, mark):
    """Return the seconds from the start of the command to the first all-reduce."""
    began = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, **cluster.environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert mark.exists(), f"{argv}\n{done.stdout}\n{done.stderr}"
    return float(mark.read_text()) - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    ways = {OURS: submit_ours, THEIRS: submit_theirs}
    taken = {name: [] for name in ways}
    cluster = RayNodes()
    try:
        cluster.add("alpha")
        cluster.add("beta")
        with workshop() as folder:
            for trial in range(-1, trials):  # the first of each fills the page cache
                for number, (name, command) in enumerate(ways.items()):
                    mark = folder / f"mark-{number}-{trial}"
                    seconds = time_one(cluster, folder, command(cluster, mark), mark)
                    if trial >= 0:
                        taken[name].append(seconds)
    finally:
        cluster.down()
    rows = {name: summary(seconds) for name, seconds in taken.items()}
    goals = {"ours / Ray Train": (ratio(rows[OURS], rows[THEIRS]), 0.5)}
    measuring.write_results("raylaunch", rows, goals)


if __name__ == "__main__":
    main()
