"""A run outlives its jobs: time limits, preemption, dead hosts, and what people do."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from echelon.core.nodes import expand
from echelon.core.waiting import wait_until
from slurm.survival import SURVIVOR, check_samples, start_chain, train_undisturbed

STEPS = 100
SHAPE = ("--nodes=2", "--procs=1")


def plan_short(took_s):
    """Return the options and the pace of a training whose first job stops halfway.

    Args:
        took_s: what the same training takes without pauses: mostly to import torch, which varies.
    """
    stop_s = round(2 * took_s) + 5  # after the start of the job
    limit_min = 1 + (stop_s + 20) // 60
    stop_s = max(stop_s, 30 * limit_min)  # a warning in the first half is refused
    options = (f"--time={limit_min}m", f"--signal-lead={60 * limit_min - stop_s}")
    return options, max(0.1, stop_s / STEPS)


@pytest.fixture
def chain(full, tmp_path):
    """Starts a training; all of it is ended whatever happens."""
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    started = []

    def start(*options, pace_s=0.1, steps=STEPS, arguments=(), script=SURVIVOR, **variables):
        env, what = {**environ, **variables}, {"arguments": arguments, "script": script}
        one = start_chain(tmp_path, env, *options, steps=steps, pace_s=pace_s, **what)
        started.append(one)
        return one

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdout.close()
    full.calm()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The training with nothing that disturbs it: its weights, and how long it took."""
    began_s = time.monotonic()
    weights = train_undisturbed(tmp_path_factory.mktemp("plain") / "run", *SHAPE, steps=STEPS)
    return weights, time.monotonic() - began_s


@pytest.fixture
def undisturbed(plain):
    return plain[0]


@pytest.fixture
def short(plain):
    """Options of a job that stops halfway, and the pace of its steps."""
    return plan_short(plain[1])


def queue(cluster):
    """Return the jobs that are in the queue."""
    return cluster.exec("squeue", "--noheader", "--format=%i").split()


def check_end(cluster, run, undisturbed, *, jobs):
    """The training has ended as if nothing had happened, and nothing waits in the queue."""
    code, said = run.wait(timeout_s=240)
    assert code == 0, said
    assert (run.folder / "weights").read_text() == undisturbed
    check_samples(run.records(), STEPS)
    states = [one["state"] for one in run.outcomes()]
    assert len(states) >= jobs, said
    assert states[-1] == "COMPLETED"
    assert wait_until(lambda: queue(cluster) == [], timeout_s=20, interval_s=0.2), queue(cluster)


def test_a_time_limit_is_outlived(full, chain, short, undisturbed):
    options, pace_s = short
    run = chain(*SHAPE, *options, pace_s=pace_s)
    check_end(full, run, undisturbed, jobs=2)
    first = run.outcomes()[0]
    assert (first["state"], first["exit_code"], first["next"]) == ("TIMEOUT", 75, "standby")
    assert first["why"].startswith("the job reaches its time limit in ")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_jobs_whose_ranks_still_start_when_they_are_warned_take_a_step(
    full, chain, short, tmp_path
):
    """Otherwise the second and the third job would have made no progress, and the run would end."""
    options, pace_s = short
    late = tmp_path / "late.py"
    late.write_text(f"""\
import os, pathlib, runpy, sys, time
with open("jobs", "a") as file:
    print(os.environ["SLURM_JOB_ID"], file=file)
jobs = list(dict.fromkeys(pathlib.Path("jobs").read_text().split()))
if jobs.index(os.environ["SLURM_JOB_ID"]) in (1, 2):
    time.sleep({pace_s * STEPS})
runpy.run_path({str(SURVIVOR)!r}, run_name="__main__")
""")
    run = chain(*SHAPE, *options, pace_s=pace_s, script=late)
    code, said = run.wait(timeout_s=500)
    assert code == 0, said
    states = [one["state"] for one in run.outcomes()]
    assert (states[:3], states[-1]) == (["TIMEOUT"] * 3, "COMPLETED"), said
    check_samples(run.records(), STEPS)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_sharded_training_outlives_a_time_limit_on_two_nodes_and_goes_on_on_three(
    full, chain, short, tmp_path
):
    """Others have the third node while the first job runs."""
    sharded = ("--shard=fsdp",)
    undisturbed = train_undisturbed(
        tmp_path / "plain", *SHAPE, steps=STEPS, arguments=sharded, leaves="values"
    )
    script = f"#!/bin/bash\nuntil [ -e {tmp_path}/enough ]; do sleep 0.2; done\n"
    other = full.sbatch(tmp_path, script, "--nodelist=node[3-4]", "--exclusive")
    full.await_job(other, "RUNNING")
    options, pace_s = short
    run = chain("--nodes=2:3", "--procs=1", *options, pace_s=pace_s, arguments=sharded)
    run.await_step(20)
    (tmp_path / "enough").touch()
    code, said = run.wait(timeout_s=500)
    assert code == 0, said
    states = [one["state"] for one in run.outcomes()]
    assert (states[0], states[-1]) == ("TIMEOUT", "COMPLETED"), said
    ranks = {turn: 0 for turn, _, _ in run.records()}
    for path in run.folder.glob("consumed-*"):
        for turn in {json.loads(line)[1] for line in path.read_text().splitlines()}:
            ranks[turn] += 1
    first, *later = ranks.values()  # a slow machine needs more than two jobs
    assert (first, set(later)) == (2, {3}), ranks
    check_samples(run.records(), STEPS)
    for one, other in zip(
        json.loads((run.folder / "values").read_text()), json.loads(undisturbed), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.full
def test_a_signal_that_a_script_asks_for_before_the_limit_is_no_request_to_stop(full, tmp_path):
    (tmp_path / "train.py").write_text("""\
import pathlib, signal, sys

saved = pathlib.Path("saved")

def save(number, frame):
    saved.write_text(str(number))
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
while not saved.exists():
    signal.pause()
""")
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --nodes=1 --time=1 --signal=B:TERM@30\nsrun python train.py\n"
    )
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    command = [sys.executable, "-m", "echelon", "submit", "--follow", "--from=job.sh"]
    command += ["--hand-over=always", "--grace=5", "--set=preload=", "train.py"]
    try:
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, timeout=200, check=False
        )
    finally:
        full.calm()
    (run,) = (tmp_path / "runs").iterdir()
    ends = [json.loads(path.read_text()) for path in sorted(run.glob("attempts/*/outcome.json"))]
    assert [one["state"] for one in ends] == ["TIMEOUT", "COMPLETED"], done
    assert ends[0]["next"] == "standby"
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGTERM))
    assert done.returncode == 0, done


def test_a_preempted_run_goes_on_when_the_nodes_are_free_again(full, chain, tmp_path, undisturbed):
    run = chain(*SHAPE, "--nodelist=node[1-2]")
    run.await_step(20)
    script = f"#!/bin/bash\nuntil [ -e {tmp_path}/enough ]; do sleep 0.2; done\n"
    high = full.sbatch(tmp_path, script, "--partition=high", "--nodelist=node[1-2]", "--exclusive")
    full.await_job(high, "RUNNING")
    assert run.outcomes()[0]["state"] == "PREEMPTED", run.said_so_far()
    (tmp_path / "enough").touch()
    check_end(full, run, undisturbed, jobs=2)
    (stopped,) = events(run, 1, "stopped")
    assert stopped["step"] >= 20


@pytest.mark.full
def test_the_host_of_the_controller_dies(full, chain):
    run = chain("--nodes=2:3", "--procs=1")
    run.await_step(20)
    full("kill", full.job(run.job(1))["BatchHost"])
    code, said = run.wait()
    assert code == 0, said
    check_samples(run.records(), STEPS)
    assert [one["state"] for one in run.outcomes()] == ["COMPLETED"]  # the first had no last word
    assert len(run.attempts()) >= 2


@pytest.mark.full
@pytest.mark.parametrize("back", ["at once", "when another job has begun"])
def test_the_host_of_the_controller_is_away_for_so_long_that_slurm_gives_it_up(full, chain, back):
    """Its controller lives and has seen the agents go; but the job is no longer its own."""
    run = chain("--nodes=2:3", "--procs=1")
    run.await_step(20)
    first = run.job(1)
    host = full.job(first)["BatchHost"]
    full("cut", host)
    given_up = lambda: host not in expand(full.job(first)["NodeList"])  # noqa: E731
    assert wait_until(given_up, timeout_s=90, interval_s=0.5), full.job(first)
    if back != "at once":
        begun = run.run / "attempts" / "2" / "owner"
        assert wait_until(begun.exists, timeout_s=60, interval_s=0.05), run.said_so_far()
    full("restore", host)
    code, said = run.wait()
    assert code == 0, said
    check_samples(run.records(), STEPS)
    assert len(run.attempts()) >= 2


@pytest.mark.full
def test_a_run_that_was_stopped_can_be_resumed(full, chain, undisturbed):
    run = chain(*SHAPE)
    run.await_step(20)
    assert run.command("stop", "last").returncode == 0
    code, said = run.wait()
    assert code == 143, said
    assert "echelon resume" in said
    assert json.loads(run.command("status", "last", "--json").stdout)["state"] == "CANCELLED"
    assert wait_until(lambda: queue(full) == [], timeout_s=20, interval_s=0.2)  # nobody waits
    done = run.command("resume", "last", "--follow")
    assert done.returncode == 0, done.stderr
    assert (run.folder / "weights").read_text() == undisturbed
    check_samples(run.records(), STEPS)
    ran = [number for number in run.attempts() if (run.run / f"attempts/{number}/owner").exists()]
    assert ran == [1, 2]  # the standby of the first one has left no gap
    again = run.command("resume", "last")
    assert (again.returncode, "is complete" in again.stderr) == (73, True)


@pytest.mark.full
def test_the_standby_sends_the_notification_of_a_controller_that_is_killed(full, chain):
    """The command kills the controller that runs it, and itself: the outcome is written by then."""
    kill = 'if mkdir first; then kill -9 "$(cut -d" " -f4 "/proc/$PPID/stat")" $PPID; exit; fi'
    run = chain(*SHAPE, "--notify", f'{kill}; echo "$ECHELON_STATE" >> told', steps=5)
    assert wait_until(lambda: list(run.folder.glob("runs/*/attempts/2")), timeout_s=60)
    run.process.kill()  # nobody waits for the run
    told = run.folder / "told"
    assert wait_until(told.exists, timeout_s=90, interval_s=0.2), run.said_so_far()
    assert wait_until(lambda: queue(full) == [], timeout_s=30, interval_s=0.2), queue(full)
    assert told.read_text() == "COMPLETED\n"
    assert run.attempts() == [1]


def test_a_cancelled_run_is_gone_with_all_that_waits(full, chain):
    run = chain(*SHAPE)
    run.await_step(5)
    assert len(queue(full)) == 2
    assert "has not ended" in run.command("resume", "last").stderr
    assert run.command("cancel", "last").returncode == 0
    code, _ = run.wait()
    assert code != 0
    assert wait_until(lambda: queue(full) == [], timeout_s=20, interval_s=0.2), queue(full)


@pytest.mark.full
def test_slurms_own_cancel_ends_the_chain_too(full, chain):
    run = chain(*SHAPE)
    run.await_step(5)
    full.exec("scancel", run.job(1))
    code, said = run.wait()
    assert code != 0
    assert wait_until(lambda: queue(full) == [], timeout_s=20, interval_s=0.2), queue(full)
    assert [one["state"] for one in run.outcomes()][:1] == ["CANCELLED"], said


def test_what_waits_is_gone_before_a_cancelled_job_is(full, tmp_path):
    """Slurm may kill a controller whose ranks take their time."""
    (tmp_path / "deaf.py").write_text("""\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("began", "w").close()
time.sleep(600)
""")
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    command = [sys.executable, "-m", "echelon", "submit", "--nodes=1", "--procs=1", "deaf.py"]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=60)
    try:
        assert wait_until((tmp_path / "began").exists, timeout_s=60, interval_s=0.1)
        assert wait_until(lambda: len(queue(full)) == 2, timeout_s=20, interval_s=0.1)
        first, standby = sorted(queue(full), key=int)
        full.exec("scancel", "--signal=TERM", "--batch", first)
        assert wait_until(lambda: standby not in queue(full), timeout_s=10, interval_s=0.1)
        assert first in queue(full)
    finally:
        full.calm()


@pytest.mark.full
def test_where_jobs_may_not_submit_the_command_that_waits_does(
    full, chain, short, tmp_path, undisturbed
):
    tools = tmp_path / "tools"
    tools.mkdir()
    real = shutil.which("sbatch")
    (tools / "sbatch").write_text(f"""\
#!/bin/sh
case $(hostname) in node*) echo 'sbatch: error: Access/permission denied' >&2; exit 1;; esac
exec {real} "$@"
""")
    (tools / "sbatch").chmod(0o755)
    options, pace_s = short
    run = chain(*SHAPE, *options, pace_s=pace_s, PATH=f"{tools}:{full.environ['PATH']}")
    check_end(full, run, undisturbed, jobs=2)
    assert run.outcomes()[0]["next"] == "wanted"


@pytest.mark.full
def test_a_node_that_fails_its_check_is_left_out_of_what_comes_next(full, chain, tmp_path):
    run = chain(
        *SHAPE,
        "--node-check=test $SLURMD_NODENAME != node2",
        steps=10,
        XDG_STATE_HOME=str(tmp_path / "state"),
    )
    code, said = run.wait()
    assert code == 0, said
    assert "node2: it failed its check" in said
    assert [one["next"] for one in run.outcomes()] == ["standby", ""]
    assert "node2" in expand(full.job(run.job(1))["NodeList"])
    assert "node2" not in expand(full.job(run.job(2))["NodeList"])
    (bad,) = json.loads(run.command("nodes", "--json").stdout)
    assert bad["node"] == "node2"
    assert run.command("nodes", "--forgive", "node2").returncode == 0
    assert json.loads(run.command("nodes", "--json").stdout) == []


@pytest.mark.full
def test_a_node_that_is_drained_is_left(full, chain, undisturbed):
    run = chain(*SHAPE, pace_s=0.4)
    run.await_step(20)
    (node,) = expand(full.job(run.job(1))["NodeList"])[1:]
    full.exec("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=memory")
    try:
        check_end(full, run, undisturbed, jobs=2)
    finally:
        full.exec("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert f"{node} is being drained (memory)" in run.said_so_far()
    assert node not in expand(full.job(run.job(2))["NodeList"])


@pytest.mark.full
def test_slurms_own_requeue_can_be_used(full, chain, short, undisturbed):
    options, pace_s = short
    run = chain(*SHAPE, *options, "--grace=10", "--hand-over=requeue", pace_s=pace_s)
    check_end(full, run, undisturbed, jobs=2)
    assert {run.job(number) for number in run.attempts()} == {run.job(1)}


@pytest.mark.full
def test_jobs_that_achieve_nothing_are_not_continued_for_ever(full, tmp_path):
    (tmp_path / "idle.py").write_text("import time\ntime.sleep(600)\n")
    environ = {**full.environ, "SLURM_CONF": str(full.box.layout.slurm_conf)}
    command = [sys.executable, "-m", "echelon", "submit", "--follow", "--time=1m", "--grace=5"]
    command += ["--hand-over=always", "--set=preload=", "idle.py"]
    try:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        waiting = queue(full)
    finally:
        full.calm()
    (run,) = (tmp_path / "runs").iterdir()
    ends = [json.loads(path.read_text()) for path in sorted(run.glob("attempts/*/outcome.json"))]
    assert [(one["state"], one["next"]) for one in ends] == [
        ("TIMEOUT", "standby"),
        ("TIMEOUT", ""),
    ]
    assert "2 jobs in a row made no progress" in done.stdout + done.stderr
    assert waiting == []


def events(run, attempt, kind):
    lines = (run.run / "events" / f"controller-{attempt}.jsonl").read_text().splitlines()
    return [one for one in map(json.loads, lines) if one["kind"] == kind]
