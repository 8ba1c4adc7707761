"""Jobs of this machine, also those that exited without recording an outcome."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.cli import main
from echelon.client.manage.run_status import current_job
from echelon.clusters.base import queue_attempt
from echelon.clusters.local import LocalCluster, describe_nodes, fit_allocation
from echelon.core.proc import start_time
from echelon.core.shell import FakeShell
from echelon.errors import UnavailableError, UsageError
from echelon.spec.job_spec import JobSpec
from echelon.spec.readers import NodeCount
from echelon.spec.readers import nodes as read_nodes
from prepared import prepare_run


class _Instant(FakeShell):
    """Starts a given program, and returns when it has ended as a zombie."""

    code = "exit 0"

    def start(self, argv, *, log, env=None, keep=()):
        super().start(argv, log=log, env=env, keep=keep)
        child = subprocess.Popen(["bash", "-c", self.code])
        child.returncode = 0
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        return child.pid


def _submit(shell, tmp_path):
    cluster = LocalCluster(shell, {}, tmp_path)
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    queue_attempt(run, cluster, {}, run.script.read_bytes())
    return current_job(run, cluster)


def test_a_process_that_ended_before_the_first_query_is_not_running(tmp_path):
    job = _submit(FakeShell(), tmp_path)  # whose processes never are
    assert (job.state, job.exit_code) == ("FAILED", 1)
    assert "failed to start" in job.reason


@pytest.mark.parametrize(
    ("code", "state", "exit_code"),
    [("exit 0", "COMPLETED", 0), ("exit 3", "FAILED", 3), ("kill -9 $$", "FAILED", 137)],
)
def test_the_parent_process_knows_the_exit_code(tmp_path, code, state, exit_code):
    shell = _Instant()
    shell.code = code
    job = _submit(shell, tmp_path)
    os.waitpid(int(job.id.split(":")[2]), 0)
    assert (job.state, job.exit_code) == (state, exit_code)


def test_stopping_a_run_of_another_machine_is_an_error(tmp_path):
    cluster = LocalCluster(FakeShell(), {}, tmp_path)
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    for end in (cluster.stop, cluster.cancel):
        with pytest.raises(UnavailableError, match="is on host elsewhere"):
            end("local:elsewhere:12:34", run_id=run.run_id)


@contextmanager
def _process(*words):
    child = subprocess.Popen(["sleep", "600"] if not words else [*words])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _claim(run, pid):
    """Record this process as the job of a run."""
    job_id = f"local:{os.uname().nodename}:{pid}:{start_time(pid)}"
    (run.attempts / "1").mkdir()
    (run.attempts / "1" / "job.json").write_text(json.dumps({"job_id": job_id}))
    return job_id


def test_a_process_of_another_program_is_never_signalled(tmp_path):
    cluster = LocalCluster(FakeShell(), {}, tmp_path)
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    with _process() as bystander:
        job_id = _claim(run, bystander.pid)
        assert cluster.job(job_id, run_id=run.run_id).state == "FAILED"
        cluster.stop(job_id, run_id=run.run_id)
        cluster.cancel(job_id, run_id=run.run_id)
        pending = Path(f"/proc/{bystander.pid}/status").read_text()
        assert "SigPnd:\t0000000000000000" in pending
        assert bystander.poll() is None


def test_the_process_of_a_run_is_signalled(tmp_path):
    cluster = LocalCluster(FakeShell(), {}, tmp_path)
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    link = tmp_path / "link"
    link.symlink_to(run.path)
    with _process("bash", "-c", "sleep 600; true", "bash", str(link / "job.sbatch")) as own:
        job_id = _claim(run, own.pid)
        assert cluster.job(job_id, run_id=run.run_id).state == "RUNNING"
        cluster.cancel(job_id, run_id=run.run_id)
        assert own.wait(60) == -signal.SIGHUP


@pytest.mark.parametrize(
    "job_id",
    ["local:a:b", "local:h:1:1:1", "local:h:x:1", "--help", "1 2", "", "ray:x", "ray:x-1@a b"],
)
def test_ps_lists_all_runs_beside_an_invalid_job_id(tmp_path, monkeypatch, capsys, job_id):
    good, odd = (
        prepare_run(JobSpec(script="train.py"), tmp_path / "runs", tmp_path) for _ in range(2)
    )
    for run, one in ((good, f"local:{os.uname().nodename}:1:0"), (odd, job_id)):
        (run.attempts / "1").mkdir()
        (run.attempts / "1" / "job.json").write_text(json.dumps({"job_id": one}))
    good.outcome(1).write_text('{"state": "COMPLETED", "exit_code": 0}')
    monkeypatch.chdir(tmp_path)
    assert main.run(["ps"]) == 0
    shown = capsys.readouterr().out
    assert "COMPLETED" in shown
    assert odd.run_id in shown
    assert main.run(["status", odd.run_id]) == 0
    assert "has no valid job id" in capsys.readouterr().out
    assert main.run(["stop", odd.run_id]) == 0


@pytest.mark.parametrize("other", ["ray:x-1", "17"])
def test_ps_lists_all_runs_beside_jobs_of_two_clusters(tmp_path, monkeypatch, capsys, other):
    run = prepare_run(JobSpec(script="train.py"), tmp_path / "runs", tmp_path)
    for number, job_id in ((1, "local:elsewhere:1:0"), (2, other)):
        (run.attempts / str(number)).mkdir()
        (run.attempts / str(number) / "job.json").write_text(json.dumps({"job_id": job_id}))
        monkeypatch.chdir(tmp_path)
        assert main.run(["ps"]) == 0
        assert run.run_id in capsys.readouterr().out


_ALLOCATION = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_TASKS_PER_NODE": "2(x3)",
}


@pytest.mark.parametrize(
    ("asked", "nodes", "hosts"),
    [
        ("", "3", "node[1-3]"),
        ("1", "1", "node1"),
        ("2", "2", "node[1-2]"),
        ("1:2", "1:2", "node[1-2]"),
        ("2:8", "2:3", "node[1-3]"),
    ],
)
def test_a_run_uses_the_requested_nodes_of_an_allocation(asked, nodes, hosts):
    spec = JobSpec(nodes=read_nodes(asked)) if asked else JobSpec()
    fitted, environ = fit_allocation(spec, _ALLOCATION, asked=bool(asked))
    assert str(fitted.nodes) == nodes
    assert environ["SLURM_JOB_NODELIST"] == hosts
    assert environ["SLURM_NNODES"] == environ["SLURM_JOB_NUM_NODES"] == str(fitted.nodes.high)
    assert describe_nodes(environ) == f"on {hosts} of job 7"


def test_an_allocation_with_too_few_nodes_is_an_error():
    with pytest.raises(UsageError, match="the allocation has 3 nodes, not 4"):
        fit_allocation(JobSpec(nodes=NodeCount(4, 4)), _ALLOCATION, asked=True)


def test_a_run_without_an_allocation_is_on_this_machine():
    assert fit_allocation(JobSpec(), {"A": "1"}, asked=False) == (JobSpec(), {"A": "1"})
    assert describe_nodes({"A": "1"}) == "on this machine"
