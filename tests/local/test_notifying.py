"""The user's command at the end of a real run: once, with how it ended, whatever that says."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from echelon.core.waiting import wait_until
from echelon.run.directory import RunDir
from local.liverun import SOURCE, live_run

COMMAND = (
    'printf "%s\\n" "$ECHELON_RUN" "$ECHELON_STATE" "$ECHELON_REASON" "$ECHELON_RUN_DIR" >> told; '
    'ls "$ECHELON_RUN_DIR"/attempts/1/outcome.json && echo done'
)
OPTIONS = ["--set=preload=", "--notify", COMMAND]
FAIL = """\
import os, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    Path("starts").open("a").write("x")
    raise ValueError("$(touch stolen); `touch stolen`\\n'; touch stolen; '\\x1b[31m")
time.sleep(600)
"""
WAIT = """\
import os, time
from pathlib import Path
rank = os.environ["RANK"]
Path(f"part-{rank}").write_text(str(os.getpid()))
Path(f"part-{rank}").rename(f"ready-{rank}")  # it appears with its content
time.sleep(600)
"""


def await_told(run):
    """Wait until the run has nothing left to say; return what the command was told."""
    assert wait_until(lambda: not run.processes(), timeout_s=30), run.processes()
    return (run.folder / "told").read_text().split("\n")[:-1]


def test_a_run_that_failed_tells_why_once(tmp_path):
    with live_run(tmp_path, FAIL, [*OPTIONS, "--restarts=1"]) as run:
        assert run.wait() == 1, run.output
        told = await_told(run)
        assert len((tmp_path / "starts").read_text()) == 2  # a restart is no end
        name, state, reason, path = told
        assert (name, state, path) == (run.path.name, "FAILED", str(run.path))
        assert reason.startswith("rank 1 on ")
        assert "ValueError: $(touch stolen); `touch stolen` '; touch stolen; '" in reason
        assert "\x1b" not in reason
        assert not (tmp_path / "stolen").exists()
        assert (run.path / "logs" / "notify.log").read_text().endswith("done\n")
        (event,) = run.events("notified")
        assert (event["state"], event["wrong"]) == ("FAILED", "")


def test_a_run_that_was_stopped_says_so(tmp_path):
    with live_run(tmp_path, WAIT, OPTIONS) as run:
        run.await_ranks()
        os.kill(run.command.pid, signal.SIGINT)
        assert run.wait() == 130, run.output
        assert await_told(run)[1] == "CANCELLED"


def test_a_command_that_fails_costs_the_run_nothing(tmp_path):
    options = ["--set=preload=", "--notify", "exit 7"]
    with live_run(tmp_path, "#!/bin/sh\nexit 0\n", options) as run:
        assert run.wait() == 0, run.output
        assert wait_until(lambda: not run.processes(), timeout_s=30), run.processes()
        (event,) = run.events("notified")
        assert event["state"] == "COMPLETED"
        assert "exited with code 7" in event["wrong"]


# --- a controller that is killed between its outcome and the command ---------------------------

BLOCKED = """\
if mkdir first; then
    read -r _ < go
fi
echo "$ECHELON_STATE: $ECHELON_REASON" >> told
"""
"""The first time it waits, for somebody to write to `go`."""


@contextmanager
def blocked_run(folder):
    """Run until the command waits; its controller, and the process group of the command."""
    os.mkfifo(folder / "go")
    with live_run(folder, FAIL, ["--set=preload=", "--restarts=0", "--notify", BLOCKED]) as run:
        assert wait_until((folder / "first").exists, timeout_s=60), run.output
        controller = run.find("controller")
        (command,) = (one.pid for one in run.processes() if one.parent == controller)
        yield run, controller, command


def read_told(folder):
    return (folder / "told").read_text().splitlines() if (folder / "told").exists() else []


def test_the_waiting_command_sends_what_a_killed_controller_could_not(tmp_path):
    with blocked_run(tmp_path) as (run, controller, command):
        os.kill(run.command.pid, signal.SIGSTOP)  # the command line looks when both are gone
        os.kill(controller, signal.SIGKILL)
        os.killpg(command, signal.SIGKILL)
        os.kill(run.command.pid, signal.SIGCONT)
        assert run.wait() == 1, run.output
        (told,) = read_told(tmp_path)
        assert told.startswith("FAILED: rank 1 on ")
        assert (run.path / "attempts" / "1" / "notified.json").exists()


def test_a_command_that_outlives_its_controller_is_not_run_again(tmp_path):
    with blocked_run(tmp_path) as (run, controller, _):
        os.kill(controller, signal.SIGKILL)
        with (tmp_path / "go").open("w") as go:
            go.write("\n")
        assert run.wait() == 1, run.output
        assert wait_until(lambda: not run.processes(), timeout_s=30), run.processes()
        assert len(read_told(tmp_path)) == 1


def test_the_next_attempt_sends_what_nobody_could(tmp_path):
    with blocked_run(tmp_path) as (run, controller, command):
        os.kill(run.command.pid, signal.SIGKILL)
        os.kill(controller, signal.SIGKILL)
        os.killpg(command, signal.SIGKILL)
        assert wait_until(lambda: not run.processes(), timeout_s=30), run.processes()
        assert read_told(tmp_path) == []
        argv = [sys.executable, "-m", "echelon", "resume", run.path.name, "--runs-dir", "runs"]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert len(read_told(tmp_path)) == 2, done.stderr  # of both attempts


# --- the job that was to go on, and finds that it must not ---------------------------------------


@pytest.mark.parametrize(
    ("state", "outcome", "told"),
    [
        ("CANCELLED", None, "CANCELLED: job 1 was cancelled"),
        (
            "NODE_FAIL",
            None,
            "FAILED: attempt 1 exited without reporting an outcome; restarts are disabled",
        ),
        ("FAILED", {"state": "FAILED", "exit_code": 1}, ""),  # whose controller has told it
        # Whose controller was killed before it could:
        ("FAILED", {"state": "COMPLETED", "exit_code": 0, "owed": True}, "COMPLETED: all done"),
        ("RUNNING", None, ""),
    ],
)
def test_what_no_controller_could_tell_is_told_by_the_job_that_gives_up(
    tmp_path, state, outcome, told
):
    run = RunDir.create(tmp_path, "r-1")
    command = f'echo "$ECHELON_STATE: $ECHELON_REASON" >> {tmp_path}/told'
    request = {"script": "train.py", "restarts": 0, "notify": command}
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in request.items()]
    run.spec.write_text("".join(lines))
    for number, after in ((1, ""), (2, "1")):
        job = {"job_id": str(number), "after": after, "submitted": "2026-01-01T00:00:00+00:00"}
        (run.attempt(run.claim_attempt()) / "job.json").write_text(json.dumps(job))
    (run.attempt(1) / "owner").touch()
    run.events_of("controller-1").write_text('{"time":1,"kind":"attempt"}\n')
    if outcome:
        run.outcome(1).write_text(json.dumps(outcome))
        name = "notify.json" if "owed" in outcome else "notified.json"
        notice = {"state": outcome["state"], "reason": "all done"}
        (run.attempt(1) / name).write_text(json.dumps(notice))
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho JobId=1 JobState={state} Comment=echelon:r-1/1\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "echelon.launch", "controller", str(run.path), "2", ""],
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "2", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing to do for job 2" in done.stderr
    assert not list(run.attempts.glob("*/notify.json"))
    assert sorted(path.name for path in run.attempts.iterdir()) == ["1", "unused-2-2"]
    written = (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""
    assert written.strip() == told
