"""Launch time: from the command to the first all-reduce.

    .venv/bin/python benchmarks/launch.py [--trials N]

Locally, 4 ranks (gloo) join, all-reduce and leave; the whole command is timed, for Echelon,
torchrun and processes started by hand. On a sandbox of 2 nodes with 2 ranks each (needs root and
Debian's Slurm), measures from `echelon submit` to the first all-reduce, in the default style and
with plain srun. Writes benchmarks/results/launch.json.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import measuring
from measuring import ECHELON, SCRIPTS, TORCHRUN, ratio, run_timed, sandbox, summary, workshop

SCRIPT = str(SCRIPTS / "first.py")
RANKS = 4
OURS = "echelon run --procs 4"
THEIRS = "torchrun --standalone --nproc-per-node=4"
BY_HAND = "4 plain processes by hand"
RAY = "Ray Train, 4 workers"


def run_ours(folder):
    return run_timed([*ECHELON, "run", "--procs", str(RANKS), SCRIPT], folder)


def run_torchrun(folder):
    return run_timed([*TORCHRUN, "--standalone", f"--nproc-per-node={RANKS}", SCRIPT], folder)


def run_by_hand(folder):
    """Start each rank without a launcher."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.monotonic()
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT],
            cwd=folder,
            env=measuring.environ(
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                OMP_NUM_THREADS="1",  # as both launchers set it
            ),
        )
        for rank in range(RANKS)
    ]
    assert [process.wait(timeout=120) for process in ranks] == [0] * RANKS
    return time.monotonic() - began


def run_ray(folder):
    return run_timed([sys.executable, str(SCRIPTS / "ray_first.py"), str(RANKS)], folder)


def measure_here(folder, trials):
    """Return the seconds of each whole command; they alternate, because the load varies."""
    ways = {OURS: run_ours, THEIRS: run_torchrun, BY_HAND: run_by_hand}
    if find_spec("ray"):
        ways[RAY] = run_ray
    else:
        print(f"{RAY}: not installed")
    for run in ways.values():
        run(folder)  # the first of each fills the page cache
    taken = {name: [] for name in ways}
    for _ in range(trials):
        for name, run in ways.items():
            taken[name].append(run(folder))
    return {name: summary(seconds) for name, seconds in taken.items()}


def submit(folder, style, mark):
    """Return the seconds from the start of the command to rank 0's first all-reduce."""
    argv = [*ECHELON, "submit", "--wait", "--style", style, "--nodes", "2", "--procs", "2"]
    began = time.monotonic()
    run_timed([*argv, SCRIPT, str(mark)], folder)
    return float(mark.read_text()) - began


def measure_on_slurm(folder, trials):
    taken = {"echelon": [], "srun": []}
    with sandbox("bench-launch", nodes=2) as box:
        for trial in range(trials):
            for style, seconds in taken.items():
                measuring.calm(box)
                seconds.append(submit(folder, style, folder / f"first-{style}-{trial}"))
    return {style: summary(seconds) for style, seconds in taken.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    with workshop() as folder:
        rows = measure_here(folder, trials)
        goals = {"ours / torchrun": (ratio(rows[OURS], rows[THEIRS]), 0.3)}
        ratios = {name: ratio(rows[OURS], rows[name]) for name in rows if name != OURS}
        if os.geteuid() == 0:
            slurm = measure_on_slurm(folder, trials)
            rows |= {f"submit, 2 nodes × 2, style {style}": slurm[style] for style in slurm}
            goals["submit, ours / srun"] = (ratio(slurm["echelon"], slurm["srun"]), 0.6)
        else:
            print("on Slurm: not measured, a sandbox whose nodes have addresses needs root")
    measuring.write_results("launch", rows, goals, ratio_to=ratios)
    for name, value in ratios.items():
        print(f"ours / {name}: {value}")


if __name__ == "__main__":
    main()
