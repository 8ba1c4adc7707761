"""Speed of the sandbox, compared with the same Slurm with its defaults.

    .venv/bin/python benchmarks/sandbox.py [--trials N]

Needs root and Debian's Slurm. Prints a table and writes benchmarks/results/sandbox.json.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.sandbox.lifecycle import open_sandbox

RESULTS = Path(__file__).parent / "results" / "sandbox.json"
NAME = "bench"
# Settings of our slurm.conf for speed; without these lines, Slurm's defaults apply.
TUNING = re.compile(
    r"^(SchedulerParameters|SlurmdTimeout|MessageTimeout|TCPTimeout)=.*\n", re.MULTILINE
)


def command(*arguments):
    """Run `echelon sandbox …` as a user would, and return how long it took."""
    began = time.monotonic()
    argv = [
        sys.executable,
        "-m",
        "echelon",
        "sandbox",
        arguments[0],
        "--name",
        NAME,
        *arguments[1:],
    ]
    subprocess.run(argv, check=True, capture_output=True)
    return time.monotonic() - began


def sandbox():
    return open_sandbox(NAME, shell=LocalShell(), environ=os.environ, uid=os.geteuid())


def measure_up(trials, *options):
    """Return the seconds of `up` (until all nodes are idle) and of `down`."""
    ups, downs = [], []
    for _ in range(trials):
        ups.append(command("up", *options))
        downs.append(command("down"))
    return ups, downs


def measure_job_start(trials):
    """Return the seconds from calling sbatch to the job's first line, on an idle cluster."""
    box, folder, delays = sandbox(), Path("/var/tmp"), []  # noqa: S108
    for trial in range(trials):
        time.sleep(0.37 * (trial % 3))  # hit the scheduler's loop at different points
        mark = folder / f"echelon-bench-{os.getpid()}-{trial}"
        began = time.time()
        wrap = f"--wrap=date +%s.%N > {mark}.part; mv {mark}.part {mark}"
        box.run(["sbatch", "--output=/dev/null", wrap]).check()
        assert wait_until(mark.exists, timeout_s=60)
        delays.append(float(mark.read_text()) - began)
        mark.unlink()
    return delays


def measure_notice(trials, fault, mend):
    """Return the seconds from a fault until Slurm marks the node DOWN."""
    box, delays = sandbox(), []
    argv = ["sinfo", "--noheader", "--nodes=node2", "--partition=low", "--format=%T"]
    for _ in range(trials):
        command(fault, "node2")
        began = time.monotonic()
        assert wait_until(
            lambda: box.run(argv).stdout.startswith("down"), timeout_s=600, interval_s=0.05
        )
        delays.append(time.monotonic() - began)
        command(mend, "node2")
        assert wait_until(lambda: box.run(argv).stdout.strip() == "idle", timeout_s=60)
    return delays


def slurm_defaults():
    """Remove our tuning from the running cluster."""
    box = sandbox()
    for path in (box.layout.slurm_conf, box.layout.slurmctld_conf):
        path.write_text(TUNING.sub("", path.read_text()))
    box.run(["scontrol", "reconfigure"]).check()


def summary(seconds):
    return {
        "median_s": round(statistics.median(seconds), 2),
        "max_s": round(max(seconds), 2),
        "trials": len(seconds),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    trials = parser.parse_args().trials
    rows = {}
    ups, downs = measure_up(trials)
    rows["up: 4 nodes, all idle"], rows["down"] = summary(ups), summary(downs)
    rows["up: 16 nodes"] = summary(measure_up(max(2, trials // 3), "--nodes=16")[0])
    rows["up: 4 nodes and accounting"] = summary(measure_up(max(2, trials // 3), "--accounting")[0])
    command("up")
    try:
        rows["job start"] = summary(measure_job_start(3 * trials))
        rows["cut node is DOWN"] = summary(measure_notice(trials, "cut", "heal"))
        rows["killed node is DOWN"] = summary(measure_notice(trials, "kill", "restore"))
        slurm_defaults()
        rows["job start, Slurm's defaults"] = summary(measure_job_start(trials))
        rows["cut node is DOWN, Slurm's defaults"] = summary(measure_notice(1, "cut", "heal"))
    finally:
        command("down")
    ratios = {
        what: round(rows[what]["median_s"] / rows[f"{what}, Slurm's defaults"]["median_s"], 3)
        for what in ("job start", "cut node is DOWN")
    }
    result = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "slurm": LocalShell().run(["slurmctld", "-V"]).check().stdout.strip(),
        "rows": rows,
        "ratio_to_slurms_defaults": ratios,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    for what, row in rows.items():
        times = f"median {row['median_s']:6.2f} s   max {row['max_s']:6.2f} s"
        print(f"{what:38} {times}   n={row['trials']}")
    for what, ratio in ratios.items():
        print(f"{what}: {ratio} × Slurm's defaults")


if __name__ == "__main__":
    main()
