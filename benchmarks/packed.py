"""How much of a packed sweep's slot time its tasks use, beside an array of whole-node jobs.

    .venv/bin/python benchmarks/packed.py [--tasks N]

Starts a sandbox of two nodes with four simulated GPUs each. Tasks of one GPU take a second each, or
end at once. The slot time that is used is the time for which tasks ran, by their own clocks, as a
share of all slots from the first task's begin to the last one's end. An array of whole-node jobs
uses one of four GPUs at best. Prints a table and writes benchmarks/results/packed.json.
"""

import argparse
import json
import os
import subprocess

from measuring import ECHELON, sandbox, workshop, write_results

NODES, GPUS = 2, 4
SLOTS = NODES * GPUS
LOST, EACH_S = 0.05, 0.1
SCRIPT = """\
import sys, time
from pathlib import Path
import os

began = time.time()
time.sleep(float(sys.argv[1]))
Path(os.environ["ECHELON_RUN_DIR"], "spent").write_text(f"{began} {time.time()}")
"""


def measure(folder, count, seconds, *options):
    """Run a sweep; return how many tasks completed, the share of slot time used, and the rate."""
    argv = [*ECHELON, "sweep", "--gpus=1", "--time=30m", "--wait", *options]
    argv += ["--grid", f"i=1..{count}", "train.py", str(seconds), "{i}"]
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=3600, check=True
    )
    sweep = done.stdout.split()[0]
    found = [path.read_text() for path in folder.glob(f"runs/{sweep}-*/spent")]
    times = [tuple(map(float, text.split())) for text in found]
    span_s = max(end for _, end in times) - min(began for began, _ in times)
    used = sum(end - began for began, end in times) / (SLOTS * span_s)
    states = [
        json.loads(path.read_text())["state"]
        for path in folder.glob(f"runs/{sweep}-*/attempts/1/outcome.json")
    ]
    return {
        "tasks": count,
        "completed": states.count("COMPLETED"),
        "used": round(used, 3),
        "per_second": round(count / span_s, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=1000)
    count = parser.parse_args().tasks
    busy = round(os.getloadavg()[0], 1)
    pack = f"--pack={NODES}"
    with workshop() as folder, sandbox("bench-packed", NODES, "--gpus", str(GPUS)):
        (folder / "train.py").write_text(SCRIPT)
        rows = {
            "packed, tasks of one second": measure(folder, count, 1, pack),
            "packed, tasks that do nothing": measure(folder, min(count, 300), 0, pack),
            "array of whole nodes, tasks of one second": measure(
                folder, min(count, 40), 1, "--slurm", "exclusive="
            ),
        }
    first, nothing, _ = rows.values()
    goals = {
        "slot time that tasks of one second do not use": (round(1 - first["used"], 3), LOST),
        "seconds per task that does nothing": (round(1 / nothing["per_second"], 3), EACH_S),
    }
    write_results("packed", rows, goals, load_average_before=busy)


if __name__ == "__main__":
    main()
