"""Packed sweeps on a real Slurm: one job of whole nodes, whose slots the tasks take in turn."""

import json

import pytest

from echelon.core.waiting import wait_until
from slurm.test_sweep import Project

SHOW = """\
import json, os, sys
from pathlib import Path

names = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_GPUS_ON_NODE",
         "SLURM_CPUS_ON_NODE", "SLURMD_NODENAME", "WORLD_SIZE", "SLURM_JOB_ID")
shown = {name: os.environ.get(name) for name in names}
path = Path(os.environ["ECHELON_RUN_DIR"], f"rank-{os.environ['RANK']}.json")
path.write_text(json.dumps(shown))
"""


@pytest.fixture
def project(full, tmp_path):
    return Project(full, tmp_path)


def job_of(project, sweep):
    path = project.folder / "runs" / sweep / "attempts" / "1" / "job.json"
    return json.loads(path.read_text())["job_id"]


@pytest.mark.slurm
@pytest.mark.quick
def test_tasks_share_the_gpus_of_whole_nodes(full, project):
    (project.folder / "train.py").write_text(SHOW)
    sweep = project.sweep(["a"] * 8, "--pack=2", "--gpus=1", "--wait")
    found = [
        json.loads((project.folder / "runs" / f"{sweep}-{i}" / "rank-0.json").read_text())
        for i in range(8)
    ]
    assert {one["SLURM_JOB_ID"] for one in found} == {job_of(project, sweep)}
    for one in found:
        assert one["CUDA_VISIBLE_DEVICES"] in {"0", "1", "2", "3"}
        assert one["SLURM_JOB_NODELIST"] == one["SLURMD_NODENAME"]
        assert (one["SLURM_NNODES"], one["SLURM_GPUS_ON_NODE"]) == ("1", "1")
    shown = full.job(job_of(project, sweep))
    assert shown["NumNodes"] == "2"


@pytest.mark.slurm
def test_a_task_may_use_several_nodes(project):
    (project.folder / "train.py").write_text(SHOW)
    sweep = project.sweep(["a"] * 3, "--pack=2", "--nodes=2", "--gpus=4", "--wait")
    folders = [project.folder / "runs" / f"{sweep}-{i}" for i in range(3)]
    for folder in folders:
        ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
        assert len(ranks) == 8
        assert {one["SLURM_NNODES"] for one in ranks} == {"2"}
        assert len({one["SLURMD_NODENAME"] for one in ranks}) == 2


@pytest.mark.slurm
def test_a_lost_node_gives_its_tasks_back(full, project):
    kinds = ["lose", "lose"] + ["fine"] * 4
    sweep = project.sweep(kinds, "--pack=2", "--gpus=4", "--procs=1", "--restarts=1")
    for index in range(2):
        assert wait_until(lambda: project.has_started(f"{sweep}-{index}"), timeout_s=60)  # noqa: B023
    batch = full.job(job_of(project, sweep))["BatchHost"]
    nodes = [node_of(project, f"{sweep}-{index}") for index in range(2)]
    (other,) = {*nodes} - {batch}
    full("kill", other)
    lost = nodes.index(other)
    assert wait_until(lambda: project.states(sweep)[lost] == "PENDING", timeout_s=120)
    project("stop", f"{sweep}-{1 - lost}")  # its slot is the only one that is left
    rows = project.await_end(sweep)
    wanted = ["COMPLETED"] * 6
    wanted[1 - lost] = "CANCELLED"
    assert [row["state"] for row in rows] == wanted


def node_of(project, run):
    """Return the node of a run with one, by its events."""
    events = project.folder / "runs" / run / "events" / "controller-1.jsonl"
    records = map(json.loads, events.read_text().splitlines())
    return next(one["name"] for one in records if one["kind"] == "joined")


@pytest.mark.slurm
def test_the_next_job_carries_out_what_the_time_limit_left(project):
    sweep = project.sweep(
        ["lose", "fine", "fine"], "--pack=1", "--gpus=4", "--procs=1", "--time=1m"
    )
    rows = project.await_end(sweep, timeout_s=240)
    assert [row["state"] for row in rows] == ["COMPLETED"] * 3
    assert (project.folder / "runs" / sweep / "attempts" / "2" / "outcome.json").exists()


@pytest.mark.slurm
def test_a_packed_sweep_that_is_stopped_can_be_resumed(project):
    sweep = project.sweep(["lose"] * 3, "--pack=1", "--gpus=2", "--procs=1")
    started = lambda: sum(project.has_started(f"{sweep}-{i}") for i in range(3)) == 2  # noqa: E731
    assert wait_until(started, timeout_s=60)
    assert sorted(project.states(sweep)) == ["PENDING", "RUNNING", "RUNNING"]
    project("sweep", "stop", sweep)
    rows = project.await_end(sweep)
    assert {row["state"] for row in rows} <= {"CANCELLED", "UNSUBMITTED"}
    project("sweep", "resume", sweep)
    again = lambda: sum(state == "COMPLETED" for state in project.states(sweep)) == 2  # noqa: E731
    assert wait_until(again, timeout_s=60, interval_s=0.5), project.rows(sweep)
    project("sweep", "stop", sweep)
    project.await_end(sweep)
