"""What goes wrong beside the ranks: pauses, places that cannot be written, second starts."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from echelon.core.waiting import wait_until
from echelon.launch.protocol.link import NEAR_SILENCE_S
from local.liverun import START_S, live_run
from started_programs import clean_environment, run_warm

OPTIONS = ["--set=preload=", "--restarts=1"]
PAUSE_S = NEAR_SILENCE_S + 2
"""Longer than either end waits for the other."""
READY = """\
import os, sys, time
from pathlib import Path
run = Path(os.environ["ECHELON_RUN_DIR"])
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
"""


@pytest.mark.full
def test_a_controller_that_was_stopped_says_so_and_gets_its_agents_back(tmp_path):
    with live_run(tmp_path, f"{READY}time.sleep(600)\n", OPTIONS) as run:
        run.await_ranks()
        controller = run.find("controller")
        os.kill(controller, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        os.kill(controller, signal.SIGCONT)
        _, again = run.await_events("generation", 2)
        assert again["world_size"] == 4
        told = "while this controller was suspended for"
        assert wait_until(lambda: told in run.output, timeout_s=START_S), run.output
        os.kill(run.command.pid, signal.SIGINT)
        assert run.wait() == 130, run.output
        assert wait_until(lambda: not run.processes(), timeout_s=30)


@pytest.mark.full
def test_a_machine_that_stands_still_for_a_while_loses_no_run(tmp_path):
    with live_run(tmp_path, f"{READY}time.sleep({PAUSE_S + 3})\n", OPTIONS) as run:
        run.await_ranks()
        everybody = [process.pid for process in run.processes() if process.role != "command"]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in everybody:
                os.kill(pid, number)
            time.sleep(PAUSE_S if number == signal.SIGSTOP else 0)
        assert run.wait() == 0, run.output
        assert "restart" not in run.output


def test_a_rank_that_cannot_be_started_says_why(tmp_path):
    """A file lies where the second start wants to have its folder."""
    script = f"{READY}(run / 'logs' / '1.1').touch()\nsys.exit(3)\n"
    with live_run(tmp_path, script, OPTIONS) as run:
        assert run.wait() == 1
        message = run.verdict()["failure"]["message"]
        assert "cannot start it" in message
        assert "File exists" in message


def test_an_outcome_that_cannot_be_written_changes_none(tmp_path):
    script = f"{READY}(run / 'attempts' / '1' / 'outcome.json').mkdir(exist_ok=True)\n"
    with live_run(tmp_path, script, OPTIONS) as run:
        assert run.wait() == 0, run.output
        assert "cannot write the outcome" in run.output


def test_a_run_is_stopped_at_once_while_its_agents_start(tmp_path):
    with live_run(tmp_path, "pass\n", OPTIONS) as run:
        events = "*/events/controller-1.jsonl"
        assert wait_until(lambda: any((tmp_path / "runs").glob(events)), timeout_s=START_S)
        os.kill(run.command.pid, signal.SIGINT)
        began_s = time.monotonic()
        assert run.wait() in (0, 130), run.output
        assert time.monotonic() - began_s < 20  # the agents have minutes to start


def test_a_second_start_of_a_job_is_the_next_attempt(tmp_path):
    """As Slurm does it with a job that is queued again."""
    script = f"{READY}sys.exit(0 if Path('again').exists() else 3)\n"
    with live_run(tmp_path, script, ["--set=preload=", "--restarts=0"]) as run:
        assert run.wait() == 3
        assert run.verdict()["failure"]["exit_code"] == 3
        (tmp_path / "again").touch()
        subprocess.run(["bash", run.path / "job.sbatch", "1"], check=True, timeout=START_S)
        states = [
            json.loads(run.path.joinpath("attempts", n, "outcome.json").read_text())["state"]
            for n in ("1", "2")
        ]
        assert states == ["FAILED", "COMPLETED"]
        assert not (run.path / "verdict.json").exists()


def test_a_run_that_was_moved_goes_on_where_it_is(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "saved = Path(os.environ['ECHELON_RUN_DIR'], 'saved')\n"
        "print('found', saved.exists(), flush=True)\n"
        "if not saved.exists():\n    saved.touch()\n    raise ValueError('once')\n"
    )
    env = clean_environment()
    ran = run_warm(tmp_path, "--set=preload=", "--restarts=0", "train.py", env=env)
    assert ran.code == 1
    (tmp_path / "runs").rename(tmp_path / "moved")
    words = ["resume", "--runs-dir=moved", "last"]
    done = subprocess.run(
        [sys.executable, "-m", "echelon", *words],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0: found True\n" in done.stdout
    assert "was moved from" in done.stderr
    assert not (tmp_path / "runs").exists()


RESUMES = """\
import pathlib
record = pathlib.Path("steps")
step = int(record.read_text()) if record.exists() else 0
while step < 30:
    step += 1
    print("step", step, flush=True)
    if step % 10 == 0:
        record.write_text(str(step))
        if step < 30:
            raise OSError("storage is away")
"""


def test_a_script_that_resumes_by_itself_may_fail_in_the_same_way_again(tmp_path):
    options = ["--nodes=1", "--procs=1", "--restarts=3", "--set=preload="]
    with live_run(tmp_path, RESUMES, options) as run:
        assert run.wait() == 0, run.output
        assert "restart 2 of 3" in run.output


def test_a_script_that_begins_anew_and_fails_in_the_same_way_is_not_tried_for_ever(tmp_path):
    options = ["--nodes=1", "--procs=1", "--on-hang=restart", "--set=preload="]
    script = RESUMES.replace("record.exists()", "False")
    with live_run(tmp_path, script, options, restarts=None) as run:
        assert run.wait() == 1, run.output
        assert "restart 1 of 3" in run.output
        assert "and the output before it was the same" in run.output
