"""Scripts of other frameworks that know nothing of Echelon: each interruption is told as it was."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from requirements import do_without
from slurm.survival import Chain

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "frameworks"
PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
FRAMEWORKS = ("accelerate", "deepspeed", "jax", "trl")
START_S = 700
"""DeepSpeed compiles an extension when it is used for the first time."""
ENDLESS = 100_000


@pytest.fixture
def train(cluster, tmp_path):
    """Start a training with two ranks on one node; all of it is ended whatever happens."""
    if not PYTHON.exists():
        do_without("needs .venv-peers: run `make peers`")
    environ = {**cluster.environ, "SLURM_CONF": str(cluster.box.layout.slurm_conf)}
    started = []

    def start(framework, *command, steps=ENDLESS, pace_s=0.2):
        argv = [sys.executable, "-m", "echelon", *command, "--procs=2", f"--python={PYTHON}"]
        process = subprocess.Popen(
            [*argv, str(SCRIPTS / f"alone_{framework}.py"), str(steps), str(pace_s)],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return Chain(folder=tmp_path, environ=environ, process=process)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    cluster.calm()


def steps_of(run):
    """Return the steps that rank 0 has printed, in the order of its logs."""
    logs = sorted((run.run / "logs").glob("*.*/rank-00000.log"))
    found = re.findall(r"^step (\d+)$", "".join(log.read_text() for log in logs), re.MULTILINE)
    return [int(step) for step in found]


def await_step(run, step):
    def reached():
        return (run.folder / "runs").exists() and any(one >= step for one in steps_of(run))

    assert wait_until(reached, timeout_s=START_S, interval_s=0.2), run.said_so_far()


def pid_of_rank(run, rank):
    events = (run.run / "events" / "controller-1.jsonl").read_text().splitlines()
    ranks = [one for one in map(json.loads, events) if one["kind"] == "rank"]
    return next(one["pid"] for one in ranks if one["rank"] == rank)


def check_ended(run, state, *sentences):
    """All commands agree about how a run ended; return what `why` says."""
    for command in ("status", "report"):
        told = run.command(command, run.run.name)
        assert told.returncode == 0, told.stderr
        assert state in told.stdout, told.stdout
    why = run.command("why", run.run.name).stdout
    for sentence in sentences:
        assert sentence in why, why
    return why


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_rank_that_was_killed_is_named(full, framework, train):
    run = train(framework, "submit", "--follow", "--nodelist=node1")
    await_step(run, 6)
    full.box.run(["kill", "-KILL", str(pid_of_rank(run, 1))], host="node1").check()
    code, said = run.wait(timeout_s=120)
    assert code == 137, said
    check_ended(run, "FAILED", "rank 1 on node1: killed by SIGKILL", "victims: rank 0")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_was_interrupted_says_so(framework, train):
    run = train(framework, "run", "--on=local")
    await_step(run, 6)
    run.process.send_signal(signal.SIGINT)
    code, said = run.wait(timeout_s=120)
    assert code == 130, said
    check_ended(run, "CANCELLED", "it was interrupted (SIGINT, as by Ctrl-C)")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_was_stopped_says_so(framework, train):
    run = train(framework, "submit", "--follow")
    await_step(run, 6)
    stopped = run.command("stop", run.run.name)
    assert stopped.returncode == 0, stopped.stderr
    code, said = run.wait(timeout_s=120)
    assert code == 143, said
    check_ended(run, "CANCELLED", "cause: cancelled")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_job_that_was_cancelled_says_so(framework, cluster, train):
    run = train(framework, "submit", "--follow")
    await_step(run, 6)
    cluster.exec("scancel", run.job(1))
    code, said = run.wait(timeout_s=120)
    # JAX handles SIGTERM and continues, until Slurm kills the job.
    assert code == (137 if framework == "jax" else 143), said
    check_ended(run, "CANCELLED", "cause: cancelled")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_another_job_continues_after_the_time_limit(framework, train):
    # Ranks are warned after 90 s. Importing the framework may take 60 s of that.
    limits = ("--time=2m", "--signal-lead=30", "--grace=10", "--hand-over=always")
    run = train(framework, "submit", "--follow", *limits, steps=120, pace_s=1.0)
    code, said = run.wait(timeout_s=800)
    assert code == 0, said
    *earlier, last = (one["state"] for one in run.outcomes())
    assert (set(earlier), last) == ({"TIMEOUT"}, "COMPLETED")
    assert (run.folder / "trained").read_text() == "120"
    taken = steps_of(run)
    assert taken[-1] == 120
    assert taken.count(1) == 1  # the next job resumed
    check_ended(run, "COMPLETED")
