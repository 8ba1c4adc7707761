"""What a run on Slurm survives: lost nodes, killed ranks; and what it says when it does not."""

import json
import subprocess
import sys
import time

import pytest

from echelon.core.waiting import wait_until

# Steps until told to stop; every rank says in which world it steps.
STEPS = """\
import os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
rank, size = dist.get_rank(), dist.get_world_size()
pathlib.Path(f"pid-{generation}-{rank}").write_text(str(os.getpid()))
while True:
    over = torch.tensor([float(pathlib.Path("over").exists())])
    dist.all_reduce(over)
    pathlib.Path(f"world-{size}-{generation}").touch()
    if over:
        break
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.fixture
def submitted(full, tmp_path):
    """Submits the stepping script with `--follow`; ended whatever happens."""
    (tmp_path / "steps.py").write_text(STEPS)
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    started = []

    def start(*options):
        argv = [sys.executable, "-m", "echelon", "submit", "--follow", "--restarts=3"]
        argv += [*options, "steps.py"]
        process = subprocess.Popen(
            argv,
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    full.calm()


def await_world(folder, size, generation=None):
    """Wait until ranks step in a world of this size."""
    pattern = f"world-{size}-{'*' if generation is None else generation}"
    assert wait_until(lambda: list(folder.glob(pattern)) != [], timeout_s=60), tell(folder)


def tell(folder):
    """Return what is known of a run that is not where it should be."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".jsonl", ".log", ".out"))
    told = [f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in files]
    return "\n".join([*told, *sorted(path.name for path in folder.iterdir())])


@pytest.mark.parametrize("fault", ["kill", pytest.param("cut", marks=pytest.mark.full)])
def test_a_run_goes_on_without_a_node_that_it_lost(full, submitted, tmp_path, fault):
    run = submitted("--nodes=2:3", "--nodelist=node[1-3]", "--gpus=1")
    await_world(tmp_path, 3)
    full(fault, "node2")
    await_world(tmp_path, 2)
    (tmp_path / "over").touch()
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "cause: lost node" in said


@pytest.mark.full
@pytest.mark.parametrize("nodes", ["2:3", "3"])
def test_a_node_that_cannot_be_reached_at_the_start_ends_no_other_s_agent(
    full, submitted, tmp_path, nodes
):
    begin = tmp_path / "begin"
    run = submitted(
        *(f"--nodes={nodes}", "--nodelist=node[1-3]", "--gpus=1", "--hand-over=never"),
        f"--prologue=touch {tmp_path}/waits; until [ -e {begin} ]; do sleep 0.05; done",
    )
    assert wait_until((tmp_path / "waits").exists, timeout_s=60), tell(tmp_path)
    full("cut", "node3")
    begin.touch()
    if nodes == "2:3":
        await_world(tmp_path, 2)
    (tmp_path / "over").touch()
    said, _ = run.communicate(timeout=120)
    assert run.returncode == (0 if nodes == "2:3" else 69), said
    assert nodes == "2:3" or "2 of 3 nodes joined; missing: node3" in said


@pytest.mark.full
def test_a_run_that_needs_the_node_ends_with_a_verdict(full, submitted, tmp_path):
    run = submitted("--nodes=2", "--nodelist=node[1-2]", "--gpus=1", "--hand-over=never")
    await_world(tmp_path, 2)
    full("kill", "node2")
    said, _ = run.communicate(timeout=60)
    assert run.returncode != 0
    assert "1 node is left; the run needs at least 2" in said
    (folder,) = (tmp_path / "runs").iterdir()
    failure = json.loads((folder / "verdict.json").read_text())["failure"]
    assert (failure["cause"], failure["node"]) == ("lost node", "node2")


@pytest.mark.full
def test_a_killed_rank_is_started_anew_on_another_node_than_ours(full, submitted, tmp_path):
    run = submitted("--nodes=2", "--nodelist=node[1-2]", "--gpus=1")
    await_world(tmp_path, 2, generation=0)
    full.box.run(["kill", "-KILL", (tmp_path / "pid-0-1").read_text()], host="node2").check()
    await_world(tmp_path, 2, generation=1)
    (tmp_path / "over").touch()
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "rank 1 on node2: killed by SIGKILL" in said


@pytest.mark.full
def test_an_agent_that_was_killed_is_brought_back_by_the_same_job(full, submitted, tmp_path):
    run = submitted("--nodes=2", "--nodelist=node[1-2]", "--gpus=1", "--hand-over=never")
    await_world(tmp_path, 2, generation=0)
    full.box.run(["pkill", "-KILL", "--oldest", "--full", "launcher agent"], host="node2").check()
    await_world(tmp_path, 2, generation=1)
    (tmp_path / "over").touch()
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said
    assert "restart 1 of 3: node2: its agent was lost" in said


@pytest.mark.full
def test_a_controller_that_did_not_run_for_a_while_keeps_its_job(full, submitted, tmp_path):
    """Its agents have gone, each for itself, and would end a job that nobody has in hand."""
    run = submitted("--nodes=2", "--nodelist=node[1-2]", "--gpus=1", "--hand-over=never")
    await_world(tmp_path, 2, generation=0)
    for number, pause_s in (("-STOP", 8), ("-CONT", 0)):
        argv = ["pkill", number, "--oldest", "--full", "launcher controller"]
        full.box.run(argv, host="node1").check()
        time.sleep(pause_s)
    await_world(tmp_path, 2, generation=1)
    time.sleep(10)  # longer than lost agents look
    (tmp_path / "over").touch()
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 0, said


@pytest.mark.full
def test_a_run_can_be_asked_to_stop(full, submitted, tmp_path):
    run = submitted("--nodes=2", "--nodelist=node[1-2]", "--gpus=1")
    await_world(tmp_path, 2)
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    argv = [sys.executable, "-m", "echelon", "stop", "last"]
    subprocess.run(argv, cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=60)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 143, said
    assert "cause: cancelled" in said
