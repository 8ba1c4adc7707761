"""How often the verdict is right, for every fault of the fault matrix, tried several times.

    .venv/bin/python benchmarks/faultmatrix.py [--trials N]

A hit names the right cause and the right rank. Prints a table and writes
benchmarks/results/faultmatrix.json. Some faults need root and a memory cgroup.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

from local.faults import FAULTS, can_limit_memory, try_fault  # noqa: E402

RESULTS = HERE / "results" / "faultmatrix.json"


def try_once(fault):
    """Return what was wrong with the verdict, and how long it took."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="echelon-fault-") as folder:
        try:
            wrong = try_fault(fault, Path(folder))
        except Exception as error:  # noqa: BLE001  any failure counts as a miss
            wrong = [f"{type(error).__name__}: {error}"[:500]]
    return wrong, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    faults = [fault for fault in FAULTS if can_limit_memory() or not fault.limited]
    rows = {
        fault.name: {"cause": fault.cause or "none", "hits": 0, "misses": []} for fault in faults
    }
    seconds = 0.0
    for _ in range(trials):
        for fault in faults:
            wrong, took_s = try_once(fault)
            seconds += took_s
            row = rows[fault.name]
            row["hits"] += not wrong
            row["misses"] += wrong
            print(f"{'hit ' if not wrong else 'MISS'} {took_s:5.1f} s  {fault.name}", flush=True)
    hits, tried = sum(row["hits"] for row in rows.values()), trials * len(rows)
    result = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "faults": len(rows),
        "left_out": [fault.name for fault in FAULTS if fault not in faults],
        "trials_of_each": trials,
        "hit_rate": round(hits / tried, 4),
        "mean_s": round(seconds / tried, 2),
        "rows": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    for name, row in rows.items():
        print(f"{name:76} {row['hits']}/{trials}  {row['cause']}")
    print(f"right cause and rank: {hits} of {tried} ({100 * hits / tried:.1f} %)")


if __name__ == "__main__":
    main()
