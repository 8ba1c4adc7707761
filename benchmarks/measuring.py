"""Shared by the benchmarks: a temporary folder for runs, a sandbox, and a table of results."""

import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from echelon.core.shell import LocalShell
from echelon.core.waiting import wait_until
from echelon.sandbox.lifecycle import changing, open_sandbox

SCRIPTS = Path(__file__).parent / "scripts"
RESULTS = Path(__file__).parent / "results"
ECHELON = [sys.executable, "-m", "echelon"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
_MARK = ("ECHELON_BENCHMARK", str(os.getpid()))
"""A variable that all ranks and launchers inherit, so that each can be found and killed."""


@contextmanager
def workshop():
    """Yield a folder visible to all nodes of a sandbox; afterwards, kill what was started in it."""
    folder = Path(tempfile.mkdtemp(prefix="echelon-bench-", dir="/var/tmp"))
    try:
        yield folder
    finally:
        end_marked()
        shutil.rmtree(folder, ignore_errors=True)


def environ(**more):
    """Return the environment for ranks and launchers; not for a sandbox's daemons."""
    return {**os.environ, **dict([_MARK]), **more}


def end_marked():
    """Kill all remaining ranks and launchers; some were orphaned on purpose."""
    wanted = f"{'='.join(_MARK)}\0".encode()

    def left():
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):  # it ended meanwhile
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid()]

    def all_gone():
        pids = left()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    wait_until(all_gone, timeout_s=10)


@contextmanager
def started(argv, folder, **variables):
    """Run a command during the block; its output goes to folder/output."""
    env = environ(**variables)
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(argv, cwd=folder, stdout=output, stderr=output, env=env)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        end_marked()
        process.wait()


def run_timed(argv, folder):
    """Run a command and return how long it took."""
    began = time.monotonic()
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return time.monotonic() - began


def steps(folder, generation, world):
    """Return by rank the time of its first step in a generation, and its pid.

    scripts/steps.py writes these files. Times are from the machine's monotonic clock.
    """
    found = {}
    for path in folder.glob(f"g{generation}-w{world}-r*"):
        words = path.read_text().split()
        found[int(path.name.rpartition("r")[2])] = (float(words[0]), int(words[1]))
    return found


# --- a Slurm cluster ----------------------------------------------------------------------------


@contextmanager
def sandbox(name, nodes, *options):
    """Run a cluster during the block; commands started in it use this cluster."""
    subprocess.run(
        [*ECHELON, "sandbox", "up", "--name", name, "--nodes", str(nodes), *options],
        check=True,
        capture_output=True,
    )
    box = open_sandbox(name, shell=LocalShell(), environ=os.environ, uid=os.geteuid())
    os.environ["SLURM_CONF"] = str(box.layout.slurm_conf)
    try:
        yield box
    finally:
        del os.environ["SLURM_CONF"]
        down = [*ECHELON, "sandbox", "down", "--name", name]
        subprocess.run(down, check=True, capture_output=True)


def cause(box, fault, node):
    """Apply a fault to a node (`kill`, `cut`, `restore`); return when it began."""
    began = time.monotonic()
    with changing(box, os.geteuid()) as changed:
        getattr(changed, fault)(node)
    return began


def calm(box):
    """Cancel all jobs, and wait until all nodes are idle."""
    box.run(["scancel", "--user=root"])
    idle = lambda: {node.state for node in box.nodes()} == {"idle"}  # noqa: E731
    assert wait_until(idle, timeout_s=60, interval_s=0.05), box.nodes()


# --- results ------------------------------------------------------------------------------------


def summary(values, unit="s", digits=3):
    """Return median, 99th percentile and maximum."""
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    figures = {"median": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    rounded = {f"{name}_{unit}": round(value, digits) for name, value in figures.items()}
    return {**rounded, "trials": len(ordered)}


def ratio(ours, theirs, figure="median_s"):
    return round(ours[figure] / theirs[figure], 3)


def write_results(name, rows, goals, **more):
    """Print a table, and write benchmarks/results/NAME.json.

    Args:
        name: name of the benchmark.
        rows: measurement → its figures.
        goals: goal → (value, limit); met if the value is at most the limit.
        more: additional entries of the file.
    """
    for what, figures in rows.items():
        shown = "   ".join(f"{_title(key)} {value}" for key, value in figures.items())
        print(f"{what:48} {shown}")
    judged = {}
    for what, (value, limit) in goals.items():
        # A goal whose value could not be measured is not met.
        met = value is not None and value <= limit
        judged[what] = {"value": value, "limit": limit, "met": met}
        print(f"{'met   ' if met else 'MISSED'} {what}: {value}, goal ≤ {limit}")
    result = {**describe_machine(), "rows": rows, "goals": judged, **more}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    (RESULTS / f"{name}.json").write_text(f"{text}\n")


def describe_machine():
    """Return the date, the machine and the versions."""
    return {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": _versions(),
    }


def _title(key):
    return re.sub(r"_(s|percent|mib)$", lambda unit: f" ({unit[1]})", key)


def _versions():
    found = {"python": platform.python_version()}
    for package in ("torch", "ray"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if shutil.which("sinfo"):
        found["slurm"] = LocalShell().run(["sinfo", "-V"]).stdout.strip()
    return found
