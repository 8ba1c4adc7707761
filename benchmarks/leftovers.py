"""What is left of a run two seconds after one of its processes was killed, compared with torchrun.

    .venv/bin/python benchmarks/leftovers.py [--trials N] [--torchrun-trials N]

Echelon: two nodes with two ranks each; every rank has two DataLoader workers, shared memory and
semaphores. Each trial kills another kind of process, and counts leftover processes and files.
torchrun: four ranks with only workers; the launcher is killed. Prints a table and writes
benchmarks/results/leftovers.json.
"""

import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

from echelon.core.waiting import wait_until  # noqa: E402
from local.leftovers import KINDS, MESSY, SCRIPT, await_end, kill, remove_files  # noqa: E402
from local.liverun import START_S, find_processes, live_run  # noqa: E402

RESULTS = HERE / "results" / "leftovers.json"
GONE_S = 2.0


def try_ours(kind, number):
    """Return how much is left, and how long the cleanup took."""
    with tempfile.TemporaryDirectory(prefix="echelon-left-") as folder:
        with live_run(Path(folder), MESSY, ["--restarts=0"]) as run:
            kill(run, kind, number)
            left, took_s = await_end(run, timeout_s=GONE_S)
            run.clear()
            remove_files(run)
        return len(left), took_s


def try_torchrun():
    """Return how many processes are left."""
    with tempfile.TemporaryDirectory(prefix="echelon-left-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launcher = subprocess.Popen(
            [*argv, "--nproc-per-node=4", "train.py"],
            cwd=folder,
            # All its descendants inherit this variable and can be found by it.
            env={**os.environ, "ECHELON_TRIAL": f"{folder}/runs/"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            marks = [folder / f"ready-{rank}" for rank in range(4)]
            assert wait_until(lambda: all(mark.exists() for mark in marks), timeout_s=START_S)
            launcher.kill()
            launcher.wait()
            time.sleep(GONE_S)
            return len(find_processes(folder / "runs"))
        finally:
            launcher.kill()
            launcher.wait()
            assert wait_until(lambda: not _kill_all(folder / "runs"), timeout_s=10)


def _kill_all(runs):
    found = find_processes(runs)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--torchrun-trials", type=int, default=20)
    options = parser.parse_args()
    # Every kind equally often, in a reproducible order.
    chance = random.Random(0)  # noqa: S311  not a secret
    kinds = [KINDS[trial % len(KINDS)] for trial in range(options.trials)]
    chance.shuffle(kinds)
    rows = {kind: {"trials": 0, "with_leftovers": 0, "gone_s": []} for kind in KINDS}
    for kind in kinds:
        left, took_s = try_ours(kind, chance.randrange(4))
        row = rows[kind]
        row["trials"] += 1
        row["with_leftovers"] += left > 0
        row["gone_s"].append(took_s)
        print(f"{kind:10} {left} left after {took_s:.2f} s", flush=True)
    for row in rows.values():
        seconds = row.pop("gone_s")
        row["median_s"] = round(statistics.median(seconds), 2) if seconds else None
        row["max_s"] = round(max(seconds), 2) if seconds else None
    survivors = []
    for _ in range(options.torchrun_trials):
        survivors.append(try_torchrun())
        print(f"torchrun   {survivors[-1]} left after {GONE_S:g} s", flush=True)
    result = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "after_s": GONE_S,
        "trials": options.trials,
        "with_leftovers": sum(row["with_leftovers"] for row in rows.values()),
        "killed": rows,
        "torchrun": {
            "trials": len(survivors),
            "with_leftovers": sum(count > 0 for count in survivors),
            "median_left": statistics.median(survivors) if survivors else None,
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(f"with leftovers: ours {result['with_leftovers']} of {options.trials}", end=", ")
    print(f"torchrun {result['torchrun']['with_leftovers']} of {len(survivors)}")


if __name__ == "__main__":
    main()
