import queue
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.jobs import Job
from echelon.core.shell import FakeShell, Result
from echelon.core.slurm import scrub
from echelon.core.slurm_text import parse_job
from echelon.errors import UnavailableError, UsageError
from echelon.spec.merging import Layer, merge

RECORDED = Path(__file__).parents[3] / "golden" / "slurm-22.05"
AWAY = "sbatch: error: Unable to contact slurm controller (connect failure)\n"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


def failed(stderr, code=1):
    return Result(argv=("x",), code=code, stderr=stderr)


def in_turn(*results):
    """Answer each call with the next result, and all later ones with the last result."""
    left = list(results)
    return lambda _argv: left.pop(0) if len(left) > 1 else left[0]


def cluster(shell, slept=None):
    slept = [] if slept is None else slept
    return SlurmCluster(shell, {}, sleep=slept.append, clock=lambda: sum(slept))


def submit(shell, slept=None):
    return cluster(shell, slept).submit(
        Path("runs/job.sh"), content=b"#!/bin/sh\n", run_id="r-1", attempt=1, environ={}
    )


def spec(**values):
    return merge([Layer(source="x", values=values)]).spec


def test_a_submission_returns_the_job_id():
    shell = FakeShell(answers={"sbatch": "42\n"})
    assert submit(shell) == "42"
    (*words, path, attempt) = shell.calls[0]
    assert words == ["sbatch", "--parsable", "--comment=echelon:r-1/1"]
    assert (Path(path).name, attempt) == ("job.sh", "1")


def test_the_checked_content_is_submitted_not_the_file(tmp_path):
    seen = []

    def sbatch(argv):
        seen.append((Path(argv[-2]).read_bytes(), Path(argv[-2]).parent.stat().st_mode & 0o777))
        return Result(argv=(), stdout="42\n")

    (tmp_path / "job.sh").write_text("exchanged")
    shell = FakeShell(answers={"sbatch": sbatch})
    slurm = cluster(shell)
    path = tmp_path / "job.sh"
    assert slurm.submit(path, content=b"checked", run_id="r-1", attempt=1, environ={}) == "42"
    assert seen == [(b"checked", 0o700)]
    assert not Path(shell.calls[0][-2]).exists()


def test_the_job_id_of_a_federated_cluster_is_parsed():
    assert submit(FakeShell(answers={"sbatch": "42;big\n"})) == "42"


def test_a_refused_submission_is_an_error_and_not_repeated():
    shell = FakeShell(answers={"sbatch": failed("sbatch: error: Invalid account\n")})
    with pytest.raises(UsageError, match="Slurm rejected the job: Invalid account"):
        submit(shell)
    assert len(shell.calls) == 1


def test_a_refused_submission_names_the_avoided_nodes():
    shell = FakeShell(answers={"sbatch": failed("sbatch: error: not available\n")})
    with pytest.raises(UsageError) as raised:
        cluster(shell).submit(
            Path("job.sh"),
            content=b"",
            run_id="r-1",
            attempt=1,
            environ={},
            exclude="node[1-3]",
        )
    assert raised.value.hint == "the job avoids node[1-3]; to see why: echelon nodes"


def test_a_short_outage_of_slurmctld_is_waited_for():
    answers = {"sbatch": in_turn(failed(AWAY), Result(argv=(), stdout="7\n")), "squeue": ""}
    slept = []
    assert submit(FakeShell(answers=answers), slept) == "7"
    assert slept == [0.5]


def test_a_submission_with_a_lost_answer_is_not_repeated():
    answers = {"sbatch": failed(LOST), "squeue": "8|echelon:r-1/2\n9|echelon:r-1/1\n"}
    shell = FakeShell(answers=answers)
    assert submit(shell) == "9"
    assert [call[0] for call in shell.calls] == ["sbatch", "squeue"]


def test_a_long_outage_of_slurmctld_is_an_error():
    slept = []
    with pytest.raises(UnavailableError, match="did not respond for 60 s"):
        submit(FakeShell(answers={"sbatch": failed(AWAY), "squeue": failed(AWAY)}), slept)
    assert sum(slept) == 60


def test_time_that_slurm_commands_take_counts_as_waiting():
    """Each of Slurm's commands waits for ten seconds itself, which must count too."""
    past_s = [0.0]

    def wait(seconds):
        past_s[0] += seconds

    def answer(_argv):
        wait(10)
        return failed(AWAY)

    shell = FakeShell(answers={"scontrol": answer})
    slurm = SlurmCluster(shell, {}, sleep=wait, clock=lambda: past_s[0])
    with pytest.raises(UnavailableError, match="did not respond for 60 s"):
        slurm.ask(["scontrol", "ping"])
    assert 60 <= past_s[0] <= 80


def test_waiting_for_slurm_is_reported_once(monkeypatch):
    monkeypatch.setattr("echelon.core.slurm.QUIET_S", 0.01)
    reported = queue.Queue()
    received = []

    def answer(_argv):
        """Answer after the first message, or after the time for a second one."""
        with suppress(queue.Empty):
            received.append(reported.get(timeout=0.2 if received else 10))
        return Result(argv=(), stdout="")

    slurm = SlurmCluster(FakeShell(answers={"scontrol": answer}), {}, tell=reported.put)
    slurm.job("7", run_id="train-x")  # asks several times
    assert received == ["waiting for Slurm to respond"]
    assert reported.empty()


def test_an_immediate_answer_of_slurm_reports_nothing():
    reported, before = [], threading.active_count()
    SlurmCluster(FakeShell(answers={"scontrol": ""}), {}, tell=reported.append).ask(["scontrol"])
    assert (reported, threading.active_count()) == ([], before)


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("pending", Job(id="6", state="PENDING", reason="Resources")),
        ("running", Job(id="5", state="RUNNING", nodes="node[1-2]")),
        ("completed", Job(id="1", state="COMPLETED", nodes="node1")),
        (
            "failed",
            Job(id="2", state="FAILED", reason="NonZeroExitCode", nodes="node1", exit_code=3),
        ),
        ("cancelled", Job(id="4", state="CANCELLED", nodes="node1", exit_code=128 + 15)),
    ],
)
def test_jobs_are_parsed_from_the_output_of_slurm(name, job):
    text = (RECORDED / f"job-{name}.txt").read_text()
    assert replace(parse_job(text), output="") == job
    assert parse_job(text).output == "/dev/null"
    assert job.over == (job.state not in ("PENDING", "RUNNING"))


def test_a_job_unknown_to_slurmctld_is_queried_from_accounting():
    forgotten = failed("slurm_load_jobs error: Invalid job id specified\n")
    shell = FakeShell(answers={"scontrol": forgotten, "sacct": "7|CANCELLED by 0|node1|0:15\n"})
    assert cluster(shell).job("7", run_id="r-1") == Job(
        id="7", state="CANCELLED", nodes="node1", exit_code=128 + 15
    )
    shell = FakeShell(answers={"scontrol": forgotten, "sacct": failed("no accounting")})
    assert cluster(shell).job("7", run_id="r-1").state == "UNKNOWN"


def test_cancelling_an_ended_job_is_not_an_error():
    over = failed("scancel: error: Kill job error on job id 7: Invalid job id specified\n")
    running = (RECORDED / "job-running.txt").read_text().replace(" Comment=", " X=")
    shown = running.replace("JobState", "Comment=echelon:r-1 JobState")
    shell = FakeShell(answers={"scancel": over, "scontrol": shown})
    cluster(shell).cancel("5", run_id="r-1")
    assert shell.calls[-1] == ("scancel", "5")


def test_a_job_with_the_same_id_but_another_run_is_not_cancelled():
    """Ids start again at 1 when a cluster is set up again."""
    shown = (RECORDED / "job-running.txt").read_text()
    shell = FakeShell(answers={"scontrol": shown})
    assert cluster(shell).job("5", run_id="r-1").state == "UNKNOWN"
    cluster(shell).cancel("5", run_id="r-1")
    assert {call[0] for call in shell.calls} == {"scontrol"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, ""),
        ({"partition": "low,high", "nodes": 4, "time": "1h"}, ""),
        ({"partition": "lwo"}, "unknown partition 'lwo': did you mean 'low'?"),
        ({"nodes": 5}, "partition 'low' has at most 4 nodes, not 5"),
        (
            {"partition": "short", "time": "2h"},
            "partition 'short' allows at most 01:00:00, not 02:00:00",
        ),
        ({"partition": "short", "time": "UNLIMITED"}, "allows at most 01:00:00, not UNLIMITED"),
        ({"partition": "shut"}, "partition 'shut' is DOWN"),
        ({"exclude": "node[2-3]"}, ""),
        ({"exclude": "node[3-6]"}, "no partition has node[5-6] (--exclude); all nodes: sinfo -N"),
        ({"nodelist": "node99"}, "no partition has node99 (--nodelist)"),
    ],
)
def test_a_request_is_checked_against_the_current_limits(values, problem):
    shown = (RECORDED / "partitions.txt").read_text()
    answers = {"scontrol": shown, "sinfo": "node[1-3]\nnode3,node4\n"}
    found = cluster(FakeShell(answers=answers)).problems(spec(**values))
    assert (problem in found[0]) if problem else found == []


def test_a_submission_inherits_no_variables_of_a_surrounding_job():
    environ = {
        "SLURM_JOB_ID": "1",
        "SBATCH_PARTITION": "x",
        "SRUN_X": "1",
        "SLURM_CONF": "c",
        "A": "b",
    }
    assert scrub(environ) == {"SLURM_CONF": "c", "A": "b"}


NODES = "low*|4|16|65536|gpu:a100:4|a100\nhigh|2|8|1024+|(null)|(null)\n"


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (b"", "4 nodes of low have 16 CPUs, 64G, gpu:a100:4, features a100"),
        (b"#SBATCH --partition=high\n", "2 nodes of high have 8 CPUs, 1G"),
        (b"#SBATCH --partition=other\n", "add --dry-run"),
    ],
)
def test_a_refused_amount_lists_what_nodes_have(script, hint):
    message = (
        "sbatch: error: Memory specification can not be satisfied\n"
        "sbatch: error: Batch job submission failed: Requested node configuration is not "
        "available\n"
    )
    shell = FakeShell(answers={"sbatch": failed(message), "sinfo": NODES})
    with pytest.raises(UsageError) as raised:
        cluster(shell).submit(Path("job.sh"), content=script, run_id="r", attempt=1, environ={})
    assert raised.value.message == (
        "Slurm rejected the job: Memory specification can not be satisfied; Batch job submission "
        "failed: Requested node configuration is not available"
    )
    assert hint in raised.value.hint


def test_a_refusal_quotes_sbatch_without_temporary_paths():
    stderr = "sbatch: unrecognized option '--foo=bar'\nTry \"sbatch --help\" for more information\n"
    with pytest.raises(UsageError) as raised:
        submit(FakeShell(answers={"sbatch": failed(stderr)}))
    assert raised.value.message == "Slurm rejected the job: unrecognized option '--foo=bar'"
    assert "job.sh" not in raised.value.hint


def test_a_missing_slurm_configuration_file_is_an_immediate_error():
    shell = FakeShell()
    slurm = SlurmCluster(shell, {"SLURM_CONF": "/nonexistent"})
    with pytest.raises(UnavailableError, match="in SLURM_CONF does not exist: /nonexistent"):
        slurm.job("7", run_id="r")
    assert not shell.calls
