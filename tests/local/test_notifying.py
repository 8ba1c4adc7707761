"""The user's command at the end of a real run: once, with how it ended, whatever that says."""

import json
import os
import signal
import subprocess
import sys

import pytest

from echelon.core.rundir import RunDir
from echelon.core.waiting import wait_until
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
Path(f"ready-{os.environ['RANK']}").write_text(str(os.getpid()))
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
        assert "it ended with code 7" in event["wrong"]


# --- the job that was to go on, and finds that it must not ---------------------------------------


@pytest.mark.parametrize(
    ("state", "outcome", "told"),
    [
        ("CANCELLED", None, "CANCELLED: job 1 was cancelled"),
        (
            "NODE_FAIL",
            None,
            "FAILED: attempt 1 has ended without a word; restarts are switched off",
        ),
        ("FAILED", {"state": "FAILED", "exit_code": 1}, ""),  # whose controller has told it
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
        job = {"job_id": str(number), "after": after}
        (run.attempt(run.claim_attempt()) / "job.json").write_text(json.dumps(job))
    (run.attempt(1) / "owner").touch()
    run.events_of("controller-1").write_text('{"time":1,"kind":"attempt"}\n')
    if outcome:
        run.outcome(1).write_text(json.dumps(outcome))
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho JobId=1 JobState={state} Comment=echelon:r-1/1\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "echelon.launch", "controller", str(run.path), "2"],
        env={**os.environ, "PATH": path, "SLURM_JOB_ID": "2", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing to do for job 2" in done.stderr
    written = (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""
    assert written.strip() == told
