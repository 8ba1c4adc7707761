"""How long a copy of a project's code takes: the first one, and one of an unchanged project.

    .venv/bin/python benchmarks/snapshot.py [--trials N] [--files N]

The project is a git repository with 10,000 files of 4 kB. Also measures a project with ten edited
files, the check that a job makes before it starts, and `cp -r` for comparison. Writes
benchmarks/results/snapshot.json.
"""

import argparse
import os
import random
import subprocess
import time

from measuring import summary, workshop, write_results

from echelon.client.code.snapshot import take_snapshot
from echelon.core.atomic_file import write_atomic
from echelon.core.shell import LocalShell
from echelon.run.code import verify_code
from echelon.run.directory import RunDir
from echelon.run.request import render_spec
from echelon.spec.job_spec import JobSpec

PER_FOLDER = 100
SIZE = 4096
EDITED = 10
FIRST_S, UNCHANGED_S = 5.0, 1.0


def create_project(root, count):
    """Create a repository with Python files of random names and numbers."""
    for number in range(count):
        folder = root / f"package{number // PER_FOLDER}"
        folder.mkdir(parents=True, exist_ok=True)
        line = f"VALUE = {number}\n"
        (folder / f"module{number}.py").write_text(line * (SIZE // len(line)))
    (root / "train.py").write_text("print('trained')\n")
    (root / ".gitignore").write_text("runs/\n")
    git = ["git", "-C", root, "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    time.sleep(3)  # files that are newer than this are compared by content


def snapshot(root, number, runs="runs"):
    """Return the run, its code, and the time that the copy took."""
    run, spec = RunDir.create(root / runs, f"train-{number}"), JobSpec(script="train.py")
    began = time.monotonic()
    code = take_snapshot(run, spec, root, LocalShell())
    took = time.monotonic() - began
    write_atomic(run.spec, render_spec(spec, code))
    return run, code, took


def edit(root, count):
    for path in random.sample(sorted(root.glob("package*/*.py")), count):
        path.write_text(f"{path.read_text()}# edited\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--files", type=int, default=10_000)
    arguments = parser.parse_args()
    busy = round(os.getloadavg()[0], 1)
    times = {"first": [], "cp": [], "unchanged": [], "edited": [], "check": []}
    with workshop() as folder:
        root = folder / "project"
        create_project(root, arguments.files)
        # Nothing is removed before the end: ext4 searches long for an inode where many were freed a
        # moment ago.
        for trial in range(arguments.trials):
            times["first"].append(snapshot(root, 1, folder / f"runs-{trial}")[2])
            began = time.monotonic()
            (folder / f"copy-{trial}").mkdir()
            packages = sorted(root.glob("package*"))
            subprocess.run(["cp", "-r", *packages, folder / f"copy-{trial}"], check=True)
            times["cp"].append(time.monotonic() - began)
        snapshot(root, 0)
        for trial in range(arguments.trials):
            run, code, took = snapshot(root, f"{trial}-unchanged")
            times["unchanged"].append(took)
            began = time.monotonic()
            verify_code(run, code)
            times["check"].append(time.monotonic() - began)
            edit(root, EDITED)
            times["edited"].append(snapshot(root, f"{trial}-edited")[2])
    rows = {
        f"first copy of {arguments.files} files": summary(times["first"]),
        "the same by cp -r": summary(times["cp"]),
        "nothing changed": summary(times["unchanged"]),
        f"{EDITED} files edited": summary(times["edited"]),
        "check before a job starts": summary(times["check"]),
    }
    goals = {
        "first copy, seconds": (rows[next(iter(rows))]["median_s"], FIRST_S),
        "nothing changed, seconds": (rows["nothing changed"]["median_s"], UNCHANGED_S),
    }
    write_results("snapshot", rows, goals, load=busy)


if __name__ == "__main__":
    main()
