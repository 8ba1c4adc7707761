"""Trainings of other frameworks with our callbacks: whatever interrupts them, nothing is lost.

The final weights equal those of a training that nothing interrupted. For Lightning, this holds only
with a loader that has a state, as the script's has: with any other loader, Lightning starts an
interrupted epoch with the first batch.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from echelon.core.waiting import wait_until
from requirements import do_without
from slurm.survival import Chain

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "frameworks"
PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
STEPS = 60
FRAMEWORKS = ("huggingface", "accelerate", "lightning")
SHAPE = ("--nodes=2", "--nodelist=node[1-2]", "--procs=1")


@pytest.fixture
def train(full, tmp_path):
    """Start a training on two nodes; all of it is ended whatever happens."""
    if not PYTHON.exists():
        do_without("needs .venv-peers: run `make peers`")
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    started = []

    def start(framework, *options, folder=tmp_path, pace_s=0.5, steps=STEPS):
        folder.mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "echelon", "submit", "--follow", *SHAPE, *options]
        argv += [f"--python={PYTHON}", str(SCRIPTS / f"with_{framework}.py")]
        process = subprocess.Popen(
            [*argv, str(steps), str(pace_s)],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return Chain(folder=folder, environ=environ, process=process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    full.calm()


def steps_of(chain):
    """Return the steps that were reported so far."""
    try:
        lines = (chain.run / "metrics.jsonl").read_text().splitlines()
    except (OSError, ValueError):
        return []
    return [json.loads(line)["step"] for line in lines]


def await_step(chain, step):
    reached = lambda: any(one >= step for one in steps_of(chain))  # noqa: E731
    assert wait_until(reached, timeout_s=240, interval_s=0.1), chain.said_so_far()


def check_end(chain, framework, train, tmp_path, *, steps=STEPS):
    """The training has ended as if nothing had happened."""
    code, said = chain.wait(timeout_s=600)
    assert code == 0, said
    assert (chain.folder / "trained").read_text() == str(steps)
    assert steps_of(chain)[-1] == steps
    plain = train(framework, folder=tmp_path / "plain", pace_s=0, steps=steps)
    assert plain.wait(timeout_s=300)[0] == 0
    ours, theirs = (torch.load(one.folder / "weights.pt") for one in (chain, plain))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(full, framework, train, tmp_path):
    run = train(framework)
    await_step(run, 25)
    (pid,) = {
        event["pid"]
        for path in (run.run / "events").glob("controller-*.jsonl")
        for event in map(json.loads, path.read_text().splitlines())
        if event["kind"] == "rank" and event["rank"] == 1
    }
    full.box.run(["kill", "-KILL", str(pid)], host="node2").check()
    check_end(run, framework, train, tmp_path)
    assert [one["state"] for one in run.outcomes()] == ["COMPLETED"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_was_stopped_resumes_at_the_step_where_all_ranks_were(
    framework, train, tmp_path
):
    run = train(framework)
    await_step(run, 25)
    assert run.command("stop", run.run.name).returncode == 0
    code, said = run.wait(timeout_s=240)
    assert code == 143, said
    assert "all ranks saved and stopped after step" in said
    assert not (tmp_path / "trained").exists()  # nothing ran after the training
    run.process = subprocess.Popen(
        [sys.executable, "-m", "echelon", "resume", "--follow", run.run.name],
        cwd=run.folder,
        env=run.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check_end(run, framework, train, tmp_path)
    taken = steps_of(run)
    assert taken == sorted(set(taken))  # no step was logged twice


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_job_continues_after_the_time_limit(framework, train, tmp_path):
    # Ranks are warned after 90 s. Importing the framework may take 60 s of that.
    run = train(framework, "--time=2m", "--signal-lead=30", steps=100, pace_s=1.0)
    check_end(run, framework, train, tmp_path, steps=100)
    *earlier, last = (one["state"] for one in run.outcomes())
    assert last == "COMPLETED"
    assert set(earlier) == {"TIMEOUT"}  # two jobs where the machine is busy


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_preempted_run_goes_on_when_the_nodes_are_free_again(full, framework, train, tmp_path):
    run = train(framework)
    await_step(run, 25)
    script = f"#!/bin/bash\nuntil [ -e {tmp_path}/enough ]; do sleep 0.2; done\n"
    folder = tmp_path / "high"
    folder.mkdir()
    high = full.sbatch(folder, script, "--partition=high", "--nodelist=node[1-2]", "--exclusive")
    full.await_job(high, "RUNNING")
    assert run.outcomes()[0]["state"] == "PREEMPTED", run.said_so_far()
    (tmp_path / "enough").touch()
    check_end(run, framework, train, tmp_path)
    assert [one["state"] for one in run.outcomes()] == ["PREEMPTED", "COMPLETED"]
