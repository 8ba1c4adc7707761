"""A sweep on a real Ray cluster: one job per task, some at a time."""

import json
import subprocess
import sys

import pytest


def python(cluster, folder, *words):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=cluster.environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def echelon(cluster, folder, *words):
    return python(cluster, folder, "-m", "echelon", *words)


@pytest.mark.full
@pytest.mark.ray
def test_tasks_are_jobs_of_ray(cluster, folder):
    script = "import sys\nprint('task', sys.argv[1])\nsys.exit(int(sys.argv[1] == '2'))\n"
    (folder / "train.py").write_text(script)
    options = ("--max-running=2", "--restarts=0", "--preload=", "--grid", "i=1..3")
    done = echelon(cluster, folder, "sweep", *cluster.here, *options, "train.py", "{i}")
    assert done.returncode == 1, done.stderr
    assert "2 of 3 tasks completed" in done.stderr
    rows = json.loads(echelon(cluster, folder, "sweep", "table", "--json").stdout)
    assert [(row["i"], row["state"]) for row in rows] == [
        *(("1", "COMPLETED"), ("2", "FAILED"), ("3", "COMPLETED")),
    ]
    assert "task 3" in echelon(cluster, folder, "logs", rows[2]["run"]).stdout


FUNCTIONS = """\
import echelon, os

def rank(word):
    return word, int(os.environ["RANK"])

job = echelon.request(on="ray", address=ADDRESS, preload=(), restarts=0)
print(job.replace(nodes=2).submit(rank, "a").results(timeout=120))
runs = job.map(rank, ["b", "c"])
print(sorted(run.result(timeout=120) for run in echelon.as_completed(runs)))
try:
    job.submit(lambda: 1 / 0).result(timeout=120)
except echelon.RunFailedError as error:
    print(error)
"""


@pytest.mark.full
@pytest.mark.ray
def test_functions_return_from_ray(cluster, folder):
    address = cluster.here[-1].partition("=")[2]
    (folder / "main.py").write_text(FUNCTIONS.replace("ADDRESS", repr(address)))
    done = python(cluster, folder, "main.py")
    assert done.returncode == 0, done.stderr
    results, mapped, error = done.stdout.splitlines()
    assert results == "[('a', 0), ('a', 1)]"
    assert mapped == "[('b', 0), ('c', 0)]"
    assert "ZeroDivisionError: division by zero on rank 0" in error
