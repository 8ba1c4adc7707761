"""How often a hang of ranks with NCCL is named right, and how soon; and whether healthy ones are.

    python benchmarks/hangs.py [--trials N] [--side-by-side N] [--healthy MINUTES] [--runs N]

Tries each hang of tests/gpu/nccl_hangs.py several times, some of them at once, beside healthy
runs that compute, compile and save between their collectives, for MINUTES together. Needs one GPU.
NCCL lets ranks share it since 2.30; where torch has an older one, ECHELON_TEST_NCCL names a
libnccl.so.2 to preload. Without a GPU only the healthy runs are made, with gloo. Writes
benchmarks/results/hangs.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests" / "gpu")]

import torch  # noqa: E402
from nccl_hangs import HANGS, TIMEOUT_S, share_gpu, try_hang  # noqa: E402

RESULTS = HERE / "results" / "hangs.json"


def try_once(hang):
    with tempfile.TemporaryDirectory(prefix="echelon-hang-", ignore_cleanup_errors=True) as folder:
        try:
            wrong, delay_s = try_hang(hang, Path(folder))
        except Exception as error:  # noqa: BLE001  any failure counts as a miss
            wrong, delay_s = [f"{type(error).__name__}: {error}"[:500]], None
    late = "" if delay_s is None else f"{delay_s:5.1f} s after it began"
    print(f"{'MISS' if wrong else 'hit '} {hang.name:45} {late} {wrong or ''}", flush=True)
    return wrong, delay_s


def run_healthy(minutes):
    """Run two healthy ranks; return the alarms, the exit code, and the minutes."""
    began_s = time.monotonic()
    options = ["--procs=2", f"--hang-timeout={TIMEOUT_S}", "--on-hang=report"]
    script = [str(HERE / "scripts" / "healthy.py"), str(minutes)]
    with tempfile.TemporaryDirectory(prefix="echelon-healthy-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "echelon", "run", *options, *script],
            cwd=folder,
            env=share_gpu(),
            capture_output=True,
            text=True,
            check=False,
        )
    said = done.stdout + done.stderr
    lines = said.splitlines()
    # The verdict's first line follows the one that tells of the hang.
    alarms = [lines[n + 1] for n, line in enumerate(lines) if line.endswith(" hangs")]
    return alarms, done.returncode, (time.monotonic() - began_s) / 60


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--side-by-side", type=int, default=4)
    parser.add_argument("--healthy", type=float, default=20.0, metavar="MINUTES")
    parser.add_argument("--runs", type=int, default=3, help="number of healthy runs")
    asked = parser.parse_args()
    with ThreadPoolExecutor(asked.runs) as beside:
        count = asked.runs if asked.healthy else 0
        healthy = [beside.submit(run_healthy, asked.healthy / count) for _ in range(count)]
        result = try_all(asked) if torch.cuda.is_available() else None
        ends = [one.result() for one in healthy]
    well = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "torch": torch.__version__,
        "minutes": round(sum(took for *_, took in ends)),
        "ended_early": sum(code != 0 for _, code, _ in ends),
        "false_alarms": sum(len(alarms) for alarms, *_ in ends),
        "alarms": [alarm for alarms, *_ in ends for alarm in alarms],
        "exit_codes": Counter(str(code) for _, code, _ in ends),
        "cores": os.cpu_count(),
    }
    old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if result is None:
        result, well = {"healthy_gloo": [*old.get("healthy_gloo", []), well]}, old.get("healthy")
    new = {**old, **result, "healthy": well}
    RESULTS.write_text(json.dumps(new, indent=1) + "\n")
    print(json.dumps({name: value for name, value in new.items() if name != "rows"}, indent=1))


def try_all(asked):
    rows = {hang.name: {"hits": 0, "misses": [], "delays_s": []} for hang in HANGS}
    todo = [hang for _ in range(asked.trials) for hang in HANGS]
    began = time.monotonic()
    with ThreadPoolExecutor(asked.side_by_side) as pool:
        for hang, (wrong, delay_s) in zip(todo, pool.map(try_once, todo), strict=True):
            row = rows[hang.name]
            row["hits"] += not wrong
            row["misses"] += wrong
            if delay_s is not None:
                row["delays_s"].append(round(delay_s, 1))
    delays = [delay for row in rows.values() for delay in row["delays_s"]]
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{torch.cuda.get_device_name()}, shared by the ranks",
        "torch": torch.__version__,
        "hang_timeout_s": TIMEOUT_S,
        "hangs": len(HANGS),
        "trials_of_each": asked.trials,
        "hit_percent": round(100 * sum(row["hits"] for row in rows.values()) / len(todo), 1),
        "median_delay_s": statistics.median(delays) if delays else None,
        "longest_delay_s": max(delays, default=None),
        "took_s": round(time.monotonic() - began),
        "rows": rows,
    }


if __name__ == "__main__":
    main()
