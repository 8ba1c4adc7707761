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
    """Answer each call with the next result; the last one stays."""
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


def test_a_submission_returns_the_jobs_id():
    shell = FakeShell(answers={"sbatch": "42\n"})
    assert submit(shell) == "42"
    (*words, path, attempt) = shell.calls[0]
    assert words == ["sbatch", "--parsable", "--comment=echelon:r-1/1"]
    assert (Path(path).name, attempt) == ("job.sh", "1")


def test_what_is_queued_is_what_was_checked_wherever_the_file_lies(tmp_path):
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


def test_a_federated_answer_has_the_cluster_behind_the_id():
    assert submit(FakeShell(answers={"sbatch": "42;big\n"})) == "42"


def test_a_refusal_is_told_and_not_repeated():
    shell = FakeShell(answers={"sbatch": failed("sbatch: error: Invalid account\n")})
    with pytest.raises(UsageError, match="Slurm rejected the job: Invalid account"):
        submit(shell)
    assert len(shell.calls) == 1


def test_a_refusal_names_the_nodes_that_are_left_out():
    shell = FakeShell(answers={"sbatch": failed("sbatch: error: not available\n")})
    with pytest.raises(UsageError) as told:
        cluster(shell).submit(
            Path("job.sh"),
            content=b"",
            run_id="r-1",
            attempt=1,
            environ={},
            exclude="node[1-3]",
        )
    assert told.value.hint == "the job avoids node[1-3]; to see why: echelon nodes"


def test_a_controller_that_is_away_for_a_moment_is_waited_for():
    answers = {"sbatch": in_turn(failed(AWAY), Result(argv=(), stdout="7\n")), "squeue": ""}
    slept = []
    assert submit(FakeShell(answers=answers), slept) == "7"
    assert slept == [0.5]


def test_a_submission_whose_answer_was_lost_is_not_made_twice():
    answers = {"sbatch": failed(LOST), "squeue": "8|echelon:r-1/2\n9|echelon:r-1/1\n"}
    shell = FakeShell(answers=answers)
    assert submit(shell) == "9"
    assert [call[0] for call in shell.calls] == ["sbatch", "squeue"]


def test_a_controller_that_stays_away_is_told():
    slept = []
    with pytest.raises(UnavailableError, match="did not respond for 60 s"):
        submit(FakeShell(answers={"sbatch": failed(AWAY), "squeue": failed(AWAY)}), slept)
    assert sum(slept) == 60


def test_time_that_commands_wait_themselves_counts():
    """Each of Slurm's waits for ten seconds, so that pauses alone say nothing."""
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


def test_who_waits_for_an_answer_is_told_once_while_it_does_not_come(monkeypatch):
    monkeypatch.setattr("echelon.core.slurm.QUIET_S", 0.01)
    told = queue.Queue()
    heard = []

    def answer(_argv):
        """Take as long as it takes until somebody was told, or would be once more."""
        with suppress(queue.Empty):
            heard.append(told.get(timeout=0.2 if heard else 10))
        return Result(argv=(), stdout="")

    slurm = SlurmCluster(FakeShell(answers={"scontrol": answer}), {}, tell=told.put)
    slurm.job("7", run_id="train-x")  # asks several times
    assert heard == ["waiting for Slurm to respond"]
    assert told.empty()


def test_nobody_is_told_anything_where_the_answer_comes_at_once():
    told, before = [], threading.active_count()
    SlurmCluster(FakeShell(answers={"scontrol": ""}), {}, tell=told.append).ask(["scontrol"])
    assert (told, threading.active_count()) == ([], before)


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
def test_jobs_are_read_from_what_slurm_prints(name, job):
    text = (RECORDED / f"job-{name}.txt").read_text()
    assert replace(parse_job(text), output="") == job
    assert parse_job(text).output == "/dev/null"
    assert job.over == (job.state not in ("PENDING", "RUNNING"))


def test_a_job_that_slurm_forgot_is_asked_of_accounting():
    forgotten = failed("slurm_load_jobs error: Invalid job id specified\n")
    shell = FakeShell(answers={"scontrol": forgotten, "sacct": "7|CANCELLED by 0|node1|0:15\n"})
    assert cluster(shell).job("7", run_id="r-1") == Job(
        id="7", state="CANCELLED", nodes="node1", exit_code=128 + 15
    )
    shell = FakeShell(answers={"scontrol": forgotten, "sacct": failed("no accounting")})
    assert cluster(shell).job("7", run_id="r-1").state == "UNKNOWN"


def test_cancelling_what_is_over_is_no_error():
    over = failed("scancel: error: Kill job error on job id 7: Invalid job id specified\n")
    running = (RECORDED / "job-running.txt").read_text().replace(" Comment=", " X=")
    shown = running.replace("JobState", "Comment=echelon:r-1 JobState")
    shell = FakeShell(answers={"scancel": over, "scontrol": shown})
    cluster(shell).cancel("5", run_id="r-1")
    assert shell.calls[-1] == ("scancel", "5")


def test_a_job_that_only_has_the_same_id_is_left_alone():
    """Ids begin anew when a cluster is set up again."""
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
def test_requests_are_held_against_the_limits_of_now(values, problem):
    shown = (RECORDED / "partitions.txt").read_text()
    answers = {"scontrol": shown, "sinfo": "node[1-3]\nnode3,node4\n"}
    found = cluster(FakeShell(answers=answers)).problems(spec(**values))
    assert (problem in found[0]) if problem else found == []


def test_nothing_of_a_surrounding_job_reaches_a_submission():
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
def test_a_refusal_of_amounts_says_what_nodes_have(script, hint):
    said = (
        "sbatch: error: Memory specification can not be satisfied\n"
        "sbatch: error: Batch job submission failed: Requested node configuration is not "
        "available\n"
    )
    shell = FakeShell(answers={"sbatch": failed(said), "sinfo": NODES})
    with pytest.raises(UsageError) as told:
        cluster(shell).submit(Path("job.sh"), content=script, run_id="r", attempt=1, environ={})
    assert told.value.message == (
        "Slurm rejected the job: Memory specification can not be satisfied; Batch job submission "
        "failed: Requested node configuration is not available"
    )
    assert hint in told.value.hint


def test_a_refusal_has_the_words_of_sbatch_and_no_path_that_will_be_gone():
    said = "sbatch: unrecognized option '--foo=bar'\nTry \"sbatch --help\" for more information\n"
    with pytest.raises(UsageError) as told:
        submit(FakeShell(answers={"sbatch": failed(said)}))
    assert told.value.message == "Slurm rejected the job: unrecognized option '--foo=bar'"
    assert "job.sh" not in told.value.hint


def test_a_configuration_file_that_is_missing_is_an_error_at_once():
    shell = FakeShell()
    slurm = SlurmCluster(shell, {"SLURM_CONF": "/nonexistent"})
    with pytest.raises(UnavailableError, match="in SLURM_CONF does not exist: /nonexistent"):
        slurm.job("7", run_id="r")
    assert not shell.calls
