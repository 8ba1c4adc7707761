"""Sweeps as job arrays on a real Slurm: whatever happens to tasks, each has an honest row."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until

SCRIPT = Path(__file__).with_name("sweeper.py")
LIGHT = ("--preload=", "--telemetry=false", "--no-snapshot")


class Project:
    """A folder with a script, and the commands that a user runs there."""

    def __init__(self, cluster, folder):
        self.folder = folder
        self.environ = {
            **cluster.environ,
            "SLURM_CONF": str(cluster.box.layout.slurm_conf),
        }
        shutil.copy(SCRIPT, folder / "train.py")

    def __call__(self, *arguments, code=0):
        """Run `echelon …` and return its stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "echelon", *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def sweep(self, kinds, *options):
        """Start a sweep with one task per kind, and return its id."""
        rows = "\n".join(["what", *kinds])
        (self.folder / "tasks.csv").write_text(f"{rows}\n")
        command = ("sweep", "--file=tasks.csv", *LIGHT, *options, "train.py", "{what}", "{index}")
        return self(*command).strip()

    def rows(self, sweep):
        return json.loads(self("sweep", "table", sweep, "--json"))

    def states(self, sweep):
        return [row["state"] for row in self.rows(sweep)]

    def await_end(self, sweep, timeout_s=120):
        def ended():
            return not {"PENDING", "RUNNING", "COMPLETING", "UNKNOWN"} & set(self.states(sweep))

        assert wait_until(ended, timeout_s=timeout_s, interval_s=0.5), self.rows(sweep)
        return self.rows(sweep)

    def has_started(self, run):
        return (self.folder / "runs" / run / "started").exists()


@pytest.fixture
def project(full, tmp_path):
    return Project(full, tmp_path)


def await_task(cluster, project, sweep, index):
    """Wait until Slurm has cleaned up a task that failed."""
    queued = lambda: cluster.exec("squeue", "--array", "--noheader", "--format=%K").split()  # noqa: E731
    ended = lambda: project.has_started(f"{sweep}-{index}") and str(index) not in queued()  # noqa: E731
    assert wait_until(ended, timeout_s=60, interval_s=0.2)


def lose_node(cluster, project, run):
    """Kill the node of a run, once its task has started; return the node."""
    assert wait_until(lambda: project.has_started(run), timeout_s=60, interval_s=0.1)
    node = json.loads(project("status", run, "--json"))["nodes"]
    cluster("kill", node)
    return node


@pytest.mark.slurm
def test_each_task_of_a_sweep_has_its_own_end(full, project):
    sweep = project.sweep(["fine", "crash", "fine", "lose", "fine", "fine"], "--max-running=4")
    await_task(full, project, sweep, 1)  # Slurm starts a job again whose node fails as it ends
    lose_node(full, project, f"{sweep}-3")
    rows = project.await_end(sweep)
    assert [row["state"] for row in rows] == [
        *("COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED"),
    ]
    assert [row["cause"] for row in rows] == ["", "exception", "", "", "", ""]
    told = json.loads(project("sweep", "status", sweep, "--json"))
    assert told["failed"] == {"exception": [f"{sweep}-1"]}
    assert len(told["arrays"]) == 1
    # A task is a run like any other.
    assert "task 1 crashes" in project("why", f"{sweep}-1")
    assert "is a sweep" in project_error(project, "status", sweep)
    # Only what failed runs again.
    project("sweep", "resume", sweep, "--wait", code=1)
    again = project.folder / "runs" / sweep / "arrays" / "2.json"
    assert json.loads(again.read_text())["tasks"] == [1]
    project("resume", f"{sweep}-1", "--wait", code=1)
    assert project.states(sweep)[1] == "FAILED"


def project_error(project, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "echelon", *arguments],
        cwd=project.folder,
        env=project.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.slurm
def test_a_sweep_that_is_stopped_can_be_resumed(project):
    sweep = project.sweep(["lose"] * 4, "--max-running=2")
    started = lambda: sum(project.has_started(f"{sweep}-{i}") for i in range(4)) == 2  # noqa: E731
    assert wait_until(started, timeout_s=60, interval_s=0.1)
    assert sorted(project.states(sweep)) == ["PENDING", "PENDING", "RUNNING", "RUNNING"]
    project("sweep", "stop", sweep)
    rows = project.await_end(sweep)
    assert {row["state"] for row in rows} == {"CANCELLED"}
    # Two begin again and complete; the others begin, and are stopped again.
    project("sweep", "resume", sweep)
    again = lambda: sum(state == "COMPLETED" for state in project.states(sweep)) == 2  # noqa: E731
    assert wait_until(again, timeout_s=60, interval_s=0.5)
    assert wait_until(
        lambda: all(project.has_started(f"{sweep}-{i}") for i in range(4)), timeout_s=60
    )
    project("sweep", "stop", sweep)
    assert sorted(row["state"] for row in project.await_end(sweep)) == [
        *("CANCELLED", "CANCELLED", "COMPLETED", "COMPLETED"),
    ]


@pytest.mark.full
@pytest.mark.slurm
def test_a_sweep_may_be_stopped_at_any_moment(project):
    """Tasks that wait, that Slurm is starting, and that have just begun."""
    for _ in range(3):
        sweep = project.sweep(["lose"] * 4)
        project("sweep", "stop", sweep)
        rows = project.await_end(sweep)
        assert {row["state"] for row in rows} == {"CANCELLED"}, rows


@pytest.mark.slurm
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_sweep_of_24_ends_with_24_honest_rows(full, project):
    kinds = ["fine"] * 24
    kinds[3], kinds[9], kinds[14], kinds[17], kinds[20] = "crash", "lose", "hang", "crash", "limit"
    sweep = project.sweep(
        kinds,
        *("--max-running=12", "--time=1m", "--grace=2s", "--hang-timeout=10s", "--on-hang=stop"),
    )
    lose_node(full, project, f"{sweep}-9")
    rows = project.await_end(sweep, timeout_s=300)
    assert len(rows) == 24
    expected = {3: "exception", 17: "exception", 14: "hang", 20: "time limit"}
    for index, row in enumerate(rows):
        assert row["cause"] == expected.get(index, ""), row
        assert (row["state"] == "COMPLETED") == (index not in expected), row


@pytest.mark.slurm
@pytest.mark.full
@pytest.mark.timeout(3600)
def test_of_1000_tiny_tasks_none_is_lost(project):
    sweep = project(
        *("sweep", "--grid", "i=1..1000", *LIGHT, "--max-running=8"),
        *("train.py", "fine{i}", "{index}"),
    ).strip()
    rows = project.await_end(sweep, timeout_s=3300)
    assert [row["i"] for row in rows] == [str(number) for number in range(1, 1001)]
    assert {row["state"] for row in rows} == {"COMPLETED"}
    for index in range(1000):
        path = project.folder / "runs" / f"{sweep}-{index}" / "started"
        assert path.read_text() == str(index)
    assert not os.listdir(project.folder / "runs" / sweep / "checkpoints")  # noqa: PTH208
