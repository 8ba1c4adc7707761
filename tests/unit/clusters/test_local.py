"""Jobs of this machine that ended without a word of their own."""

import os
import subprocess

import pytest

from echelon.clusters.local import LocalCluster
from echelon.clusters.runs import current_job, prepare_run, submit_run
from echelon.core.shell import FakeShell
from echelon.errors import UnavailableError
from echelon.spec import JobSpec


class _Instant(FakeShell):
    """Starts a program of a test's own, and returns when it has ended; nobody has collected it."""

    code = "exit 0"

    def start(self, argv, *, log, env=None, keep=()):
        super().start(argv, log=log, env=env, keep=keep)
        child = subprocess.Popen(["bash", "-c", self.code])
        child.returncode = 0
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return child.pid


def _submit(shell, tmp_path):
    cluster = LocalCluster(shell, {}, tmp_path)
    run, _ = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    submit_run(run, cluster, {}, run.script.read_bytes())
    return current_job(run, cluster)


def test_a_process_that_was_gone_before_anybody_looked_is_not_running(tmp_path):
    job = _submit(FakeShell(), tmp_path)  # whose processes never are
    assert (job.state, job.exit_code) == ("FAILED", 1)
    assert "could not start" in job.reason


@pytest.mark.parametrize(
    ("code", "state", "exit_code"),
    [("exit 0", "COMPLETED", 0), ("exit 3", "FAILED", 3), ("kill -9 $$", "FAILED", 137)],
)
def test_whoever_started_it_knows_how_it_ended(tmp_path, code, state, exit_code):
    shell = _Instant()
    shell.code = code
    job = _submit(shell, tmp_path)
    os.waitpid(int(job.id.split(":")[2]), 0)
    assert (job.state, job.exit_code) == (state, exit_code)


def test_a_run_of_another_machine_is_not_said_to_be_stopped(tmp_path):
    cluster = LocalCluster(FakeShell(), {}, tmp_path)
    run, _ = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    for end in (cluster.stop, cluster.cancel):
        with pytest.raises(UnavailableError, match="is on elsewhere"):
            end("local:elsewhere:12:34", run_id=run.run_id)
