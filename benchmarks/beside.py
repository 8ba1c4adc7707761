"""Two versions of Echelon side by side: the working tree, and an earlier commit.

    .venv/bin/python benchmarks/beside.py COMMIT [--pairs N] [--only NAME]

Calls of both versions alternate, so that what else the machine does affects both. Each version has
a folder and runs of its own, and both use one sandbox, whose jobs begin far in the future. Prints
the ratios of wall-clock and of CPU time.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import environ, sandbox, workshop
from snapshot import create_project

ROOT = Path(__file__).parents[1]
LATER = ("--slurm", "begin=now+5hours", "--time", "5m")
COMMANDS = {
    "submit": ("submit", *LATER, "train.py"),
    "ps": ("ps",),
    "status": ("status", "last"),
    "snapshot of 10,000 files, unchanged": ("run", "--snapshot", "--telemetry", "false", "true.py"),
    "sweep of 1,000 tasks": ("sweep", *LATER, "--grid", "i=1..1000", "train.py", "{i}"),
}
LARGE = "snapshot of 10,000 files, unchanged"
FEW = {LARGE: 10, "sweep of 1,000 tasks": 10}
"""Most pairs of calls that take long."""
MEDIAN, P90 = 1.05, 1.15


def check_out(commit, folder):
    """Return the sources of a commit."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, "src"], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


def call(sources, folder, words):
    """Run a command of a version; return its wall-clock and CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "echelon", *words],
        cwd=folder,
        env=environ(PYTHONPATH=str(sources), XDG_STATE_HOME=str(folder.parent / "state")),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    took = time.monotonic() - began
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(versions, folders, words, pairs):
    """Return the figures of a command: times of both versions, and their ratios."""
    times = {name: [] for name in versions}
    for number in range(pairs + 1):
        for name in versions if number % 2 else reversed(versions):
            took = call(versions[name], folders[name], words)
            if number:  # the first pair fills caches
                times[name].append(took)
        subprocess.run(["scancel", "--user=root"], check=True)  # the queue has a limit
    old, new = times.values()
    return {
        "before_s": round(statistics.median(wall for wall, _ in old), 3),
        "now_s": round(statistics.median(wall for wall, _ in new), 3),
        "wall": _ratio([wall for wall, _ in new], [wall for wall, _ in old], 0.5),
        "wall_p90": _ratio([wall for wall, _ in new], [wall for wall, _ in old], 0.9),
        "cpu": _ratio([cpu for _, cpu in new], [cpu for _, cpu in old], 0.5),
        "pairs": pairs,
    }


def _ratio(ours, theirs, share):
    at = lambda values: sorted(values)[int(share * (len(values) - 1))]  # noqa: E731
    return round(at(ours) / at(theirs), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--only", choices=COMMANDS, action="append")
    asked = parser.parse_args()
    rows = {}
    with workshop() as folder, sandbox("bench-beside", 1):
        versions = {"before": check_out(asked.commit, folder / "before"), "now": ROOT / "src"}
        for sources in versions.values():  # else each call compiles what was edited last
            subprocess.run([sys.executable, "-m", "compileall", "-qq", sources], check=True)
        small, large = ({name: folder / f"{kind}-{name}" for name in versions} for kind in "sl")
        for name in versions:
            small[name].mkdir()
            (small[name] / "train.py").write_text("print('trained')\n")
        names = asked.only or list(COMMANDS)
        if LARGE in names:
            for name in versions:
                create_project(large[name], 10_000)
                (large[name] / "true.py").write_text("")
        for name in names:
            folders = large if name == LARGE else small
            pairs = min(asked.pairs, FEW.get(name, asked.pairs))
            rows[name] = compare(versions, folders, COMMANDS[name], pairs)
    goals = {f"{name}, median": (one["wall"], MEDIAN) for name, one in rows.items()}
    goals |= {f"{name}, p90": (one["wall_p90"], P90) for name, one in rows.items()}
    for name, one in rows.items():
        print(f"{name:40}", "   ".join(f"{figure} {value}" for figure, value in one.items()))
    for name, (value, limit) in goals.items():
        print(f"{'met   ' if value <= limit else 'MISSED'} {name}: {value}, goal ≤ {limit}")


if __name__ == "__main__":
    main()
