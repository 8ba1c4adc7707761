"""What `--stage` costs and brings, with an environment on slow storage that all nodes share.

    .venv/bin/python benchmarks/stage.py [--trials N] [--warm N]

Storage is a FUSE mount with 2 ms per operation and 50 MB/s for all nodes together
(scripts/slow_storage.py; needs libfuse 3 and `pip install mfusepy`). The environment has torch
without its tests and headers. Nodes are simulated: they share this machine's disk, CPUs and page
cache, so 8 nodes write 8 copies to one disk and compute all digests on the same cores. On a cluster
each has its own. For the same reason a network is not measured.

First, 1 and 8 nodes copy the environment: bytes read from storage, and the time until the last node
has its copy. Then 2 nodes start ranks with a copy that is there already, beside the environment on
the local disk, in turns: from the start of the controller, as a job on a cluster, and from the
command, which also lists the environment's files on slow storage. Writes
benchmarks/results/stage.json.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import measuring
from measuring import ECHELON, SCRIPTS, ratio, started, steps, summary, workshop

from echelon.core.waiting import wait_until

NEEDED = (
    *("torch", "torchgen", "functorch", "numpy", "numpy.libs", "sympy", "mpmath", "networkx"),
    *("jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions.py"),
)
"""What `import torch` may load."""
LEFT_OUT = ("test", "include")
"""Parts of torch that no rank loads."""
MANY = 8


def make_environment(place):
    """Make a virtual environment with torch; its files are links to those of our own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (ours,) = Path(sys.prefix).glob("lib/python*/site-packages")
    for name in NEEDED:
        if (ours / name).exists():
            subprocess.run(["cp", "-al", ours / name, site / name], check=True)
    for name in LEFT_OUT:
        shutil.rmtree(site / "torch" / name, ignore_errors=True)


@contextmanager
def slow_storage(origin, place, counts):
    """Mount a folder as slow storage during the block."""
    place.mkdir()
    argv = [sys.executable, SCRIPTS / "slow_storage.py", origin, place, counts]
    log = place.with_suffix(".log")
    with log.open("wb") as output:
        server = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        assert wait_until(place.is_mount, timeout_s=10), log.read_text()
        yield
    finally:
        subprocess.run(["fusermount3", "-u", "-z", place], check=False)
        server.terminate()
        server.wait()


def read_events(folder, kind):
    lines = [
        line
        for path in folder.glob("runs/*/events/controller-1.jsonl")
        for line in path.read_text().splitlines()
    ]
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def command(nodes, python, *options):
    return [*ECHELON, "run", "--nodes", str(nodes), "--procs", "1", "--python", python, *options]


def copy_cold(nodes, python, folder, counts):
    """Have nodes copy the environment; return the event, and the bytes read from storage."""
    folder.mkdir()
    time.sleep(0.3)  # until the counts are those of before
    before = json.loads(counts.read_text())
    argv = command(nodes, python, "--stage", "--stage-dir", str(folder / "stages" / "%N"))
    with started([*argv, str(SCRIPTS / "steps.py"), str(folder), "0.02"], folder):
        done = lambda: bool(read_events(folder, "staged"))  # noqa: E731
        assert wait_until(done, timeout_s=300, interval_s=0.1), (folder / "output").read_text()
        after = json.loads(counts.read_text())
    (event,) = read_events(folder, "staged")
    assert (event["nodes"], event["found"]) == (nodes, 0), event
    shutil.rmtree(folder / "stages")
    return event, after["bytes"] - before["bytes"]


def time_start(argv, folder, ranks):
    """Return the seconds to the first all-reduce: from the controller's start, from the command."""
    folder.mkdir()
    began, clock = time.monotonic(), time.time() - time.monotonic()
    with started([*argv, str(SCRIPTS / "steps.py"), str(folder), "0.02"], folder):
        met = lambda: len(steps(folder, 0, ranks)) == ranks  # noqa: E731
        assert wait_until(met, timeout_s=300, interval_s=0.05), (folder / "output").read_text()
        done = max(at for at, _ in steps(folder, 0, ranks).values())
    (event,) = read_events(folder, "attempt")
    return done + clock - event["time"], done - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--warm", type=int, default=5)
    asked = parser.parse_args()
    rows, starts = {}, {}
    with workshop() as folder:
        make_environment(folder / "origin" / "venv")
        shared, counts = folder / "shared", folder / "counts"
        with slow_storage(folder / "origin", shared, counts):
            python = str(shared / "venv" / "bin" / "python")
            taken = {1: [], MANY: []}
            for trial in range(asked.trials):
                for nodes, found in taken.items():
                    place = folder / f"cold-{nodes}-{trial}"
                    found.append(copy_cold(nodes, python, place, counts))
            for nodes, found in taken.items():
                name = f"{nodes} node{'s'[: nodes > 1]}"
                rows[f"staged on {name}"] = summary([event["seconds"] for event, _ in found])
                read = sorted(amount for _, amount in found)[len(found) // 2]
                rows[f"read by {name}"] = {"mb": round(read / 1e6, 1)}
            local = str(folder / "origin" / "venv" / "bin" / "python")
            stage = ("--stage", "--stage-dir", str(folder / "stages" / "%N"))
            variants = {
                "warm stage": command(2, python, *stage),
                "local disk": command(2, local),
                "slow storage": command(2, python),
            }
            time_start(variants["warm stage"], folder / "first", 2)  # copies
            for trial in range(asked.warm):
                for name, argv in variants.items():
                    if name == "slow storage" and trial:
                        continue  # once is enough: it takes long
                    place = folder / f"{name.replace(' ', '-')}-{trial}"
                    starts.setdefault(name, []).append(time_start(argv, place, 2))
    for name, both in starts.items():
        rows[f"job to first all-reduce, {name}"] = summary([job_s for job_s, _ in both])
        rows[f"command to first all-reduce, {name}"] = summary([whole for _, whole in both])
    job, whole = "job to first all-reduce,", "command to first all-reduce,"
    read = {nodes: rows[f"read by {name}"]["mb"] for nodes, name in ((1, "1 node"), (8, "8 nodes"))}
    goals = {
        "bytes read, 8 nodes / 1": (round(read[8] / read[1], 3), 1.05),
        "time until staged, 8 nodes / 1": (
            ratio(rows["staged on 8 nodes"], rows["staged on 1 node"]),
            1.5,
        ),
        "job to first all-reduce, warm stage / local disk": (
            ratio(rows[f"{job} warm stage"], rows[f"{job} local disk"]),
            1.2,
        ),
    }
    more = {
        "command, warm stage / local disk": ratio(
            rows[f"{whole} warm stage"], rows[f"{whole} local disk"]
        )
    }
    measuring.write_results("stage", rows, goals, ratio_to=more)


if __name__ == "__main__":
    main()
