"""Following a run, with a fake cluster and a fake clock."""

import errno
import io
import json
import os
import shutil
import sys
import time
from dataclasses import asdict

import pytest

from echelon.cli import following, main
from echelon.client.manage import waiting
from echelon.clusters.base import queue_attempt
from echelon.core.jobs import Job
from echelon.errors import NotFoundError, UnavailableError
from echelon.run.attempts import submit_attempt
from echelon.run.event_log import EventWriter
from echelon.run.events import GenerationStarted
from echelon.run.rank_logs import Line, LogClock
from echelon.run.verdict import Failure, judge
from echelon.spec.job_spec import JobSpec
from fake_clock import FakeClock
from prepared import prepare_run


class _Cluster:
    """Answers queries with the given jobs, one after the other; with the last one from then on."""

    def __init__(self, *jobs):
        self._jobs, self.asked, self.cancelled = list(jobs), 0, []

    def exclusions(self, *_):
        return ""

    def submit(self, *_, **__):
        return "7"

    def job(self, *_, **__):
        self.asked += 1
        return self._jobs.pop(0) if len(self._jobs) > 1 else self._jobs[0]

    def cancel(self, job_id, **_):
        self.cancelled.append(job_id)


def _start(cluster, tmp_path):
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    queue_attempt(run, cluster, {}, b"")
    cluster.asked = 0
    return run


def test_a_requeued_job_is_queried_once_a_second(tmp_path):
    clock = FakeClock()

    class _Later(_Cluster):
        def job(self, *_, **__):
            super().job()
            return Job(id="7", state="PENDING" if clock.now_s() < 120 else "COMPLETED")

    cluster = _Later(Job(id="7", state="PENDING"))
    run = _start(cluster, tmp_path)
    run.outcome(1).write_text("{}")  # from before it was queued again
    assert following.follow_run(run, cluster, show=False, clock=clock) == 0
    assert cluster.asked < 120 + 5 / waiting.LOOK_S + 5


def test_a_job_whose_run_was_deleted_is_cancelled(tmp_path):
    cluster = _Cluster(Job(id="7", state="RUNNING"))
    run = _start(cluster, tmp_path)
    clock = FakeClock(on_sleep=lambda _: shutil.rmtree(run.path, ignore_errors=True))
    with pytest.raises(NotFoundError, match="directory was deleted"):
        following.follow_to_the_end(run, cluster, clock)
    assert cluster.cancelled == ["7"]


def test_waiting_without_output_prints_why_a_run_failed(tmp_path, capsys):
    cluster = _Cluster(Job(id="7", state="FAILED", exit_code=3))
    run = _start(cluster, tmp_path)
    verdict = judge([Failure(cause="exception", message="ValueError: boom", rank=1, node="n")])
    run.verdict.write_text(json.dumps(asdict(verdict)))
    assert following.follow_run(run, cluster, show=False) == 3
    assert "rank 1 on n: ValueError: boom\n  cause: exception" in capsys.readouterr().err


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        UnavailableError("slurmctld did not respond for 60 s", hint=""),
    ],
)
def test_an_outage_of_storage_or_cluster_does_not_cancel_the_run(tmp_path, capsys, trouble):
    class _Away(_Cluster):
        def job(self, *_, **__):
            super().job()
            if self.asked in (2, 3):
                raise trouble
            return Job(id="7", state="RUNNING" if self.asked < 5 else "COMPLETED")

    cluster = _Away(Job(id="7", state="RUNNING"))
    run = _start(cluster, tmp_path)
    assert following.follow_to_the_end(run, cluster, FakeClock()) == 0
    assert cluster.cancelled == []
    assert capsys.readouterr().err.count("waiting for the run's storage") == 1


class _Interrupted(_Cluster):
    """Ctrl-C is pressed at some of the queries, counted from 1."""

    def __init__(self, *jobs, at):
        super().__init__(*jobs)
        self._at, self.stopped = at, []

    def job(self, *_, **__):
        job = super().job()
        if self.asked in self._at:
            raise KeyboardInterrupt
        return job

    def stop(self, job_id, **_):
        self.stopped.append(job_id)


def test_ctrl_c_exits_with_130_on_every_cluster(tmp_path, capsys):
    running, ended = Job(id="7", state="RUNNING"), Job(id="7", state="FAILED", exit_code=143)
    cluster = _Interrupted(running, running, running, ended, at=[2])
    run = _start(cluster, tmp_path)
    assert following.follow_to_the_end(run, cluster, FakeClock()) == 130
    assert (cluster.stopped, cluster.cancelled) == (["7"], [])
    assert "press Ctrl-C again to stop immediately" in capsys.readouterr().err


def test_a_second_ctrl_c_cancels_the_run(tmp_path):
    running, ended = Job(id="7", state="RUNNING"), Job(id="7", state="CANCELLED")
    cluster = _Interrupted(*[running] * 5, ended, at=[2, 4])  # the third query is that of `stop`
    run = _start(cluster, tmp_path)
    assert following.follow_to_the_end(run, cluster, FakeClock()) == 130
    assert (cluster.stopped, cluster.cancelled) == (["7"], ["7"])


def test_ctrl_c_does_not_stop_a_submitted_run(tmp_path, capsys):
    cluster = _Interrupted(Job(id="7", state="RUNNING"), at=[2])
    run = _start(cluster, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        following.follow_run(run, cluster, show=False, clock=FakeClock())
    assert (cluster.stopped, cluster.cancelled) == ([], [])
    assert f"{run.run_id} keeps running" in capsys.readouterr().err


def test_a_waiting_standby_is_stopped_before_the_running_job(tmp_path):
    stopped = []

    class _Two(_Cluster):
        def job(self, job_id, **_):
            return Job(id=job_id, state="PENDING" if job_id == "8" else "RUNNING")

        def stop(self, job_id, **_):
            stopped.append(job_id)

    cluster = _Two()
    run = _start(cluster, tmp_path)
    submit_attempt(run, lambda _: "8", cluster.job, after="7")
    waiting.stop_all(run, cluster)
    assert stopped == ["8", "7"]


@pytest.mark.parametrize(
    ("failed", "lines"),
    [
        (True, ["0: closed by peer", "1: ValueError", "train failed"]),
        # If the run goes on or is complete, the newest lines of ranks come last.
        (False, ["train failed", "0: closed by peer", "1: ValueError"]),
    ],
)
def test_the_cause_of_a_failure_is_printed_after_the_output_of_ranks(
    tmp_path, monkeypatch, failed, lines
):
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    output = run.logs / "job-1.out"
    output.write_text("train failed\n")
    record = {"job_id": "7", "output": str(output)}
    run.claim_attempt()
    (run.attempt(1) / "job.json").write_text(json.dumps(record))
    for rank, text in enumerate(("closed by peer", "ValueError")):
        log = run.rank_log(attempt=1, generation=0, rank=rank)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"{text}\n")
    if failed:
        run.verdict.write_text("{}")
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    assert following.print_logs(run, following.Choice())
    assert shown.getvalue().splitlines() == lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def bars(tmp_path, monkeypatch):
    """Return a run whose ranks have drawn progress bars, and a function that follows it."""
    monkeypatch.setenv("COLUMNS", "60")
    run = prepare_run(JobSpec(script="train.py"), tmp_path, tmp_path)
    for rank in (0, 1):
        log = run.rank_log(attempt=1, generation=0, rank=rank)
        log.parent.mkdir(exist_ok=True)
        # A nested bar goes back to the line above.
        log.write_text("begin\n\rinner 50%\x1b[A\n\r 10%\r 20%")

    def show(stderr, *ranks):
        monkeypatch.setattr(sys, "stderr", stderr)
        screen = following._Screen(run, following.Choice(ranks=frozenset(ranks)))
        screen.show(over=False)
        with log.open("a") as file:
            file.write("\r 30%\n")
        screen.show(over=False)
        return stderr.getvalue()

    return show


def test_a_ranks_progress_bar_is_the_last_line_of_a_terminal(bars, capsys):
    assert bars(Terminal(), 1) == "\r1: …  20%\x1b[K" + "\r\x1b[K"
    assert capsys.readouterr().out == "1: begin\n1: …  30%\n"


def test_a_progress_bar_without_a_terminal_is_printed_every_few_seconds(bars, monkeypatch):
    assert bars(io.StringIO()) == ""
    monkeypatch.setattr(following, "_LINE_S", 0)
    assert bars(io.StringIO()).splitlines()[0] == "0: …  20%"


# --- some lines -------------------------------------------------------------------------------


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """Return a run of three ranks that printed at second 100, 200 and 300 of the epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = prepare_run(JobSpec(script="train.py"), tmp_path / "runs", tmp_path)
    output = run.logs / "job-1.out"
    output.write_text("of the job\n")
    os.utime(output, (150, 150))
    run.claim_attempt()
    record = {"job_id": f"local:{os.uname().nodename}:1:0", "output": str(output)}
    (run.attempt(1) / "job.json").write_text(json.dumps(record))
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        writer.write(GenerationStarted(generation=0, world_size=3, nodes=1))
    clock = LogClock()
    logs = [run.rank_log(attempt=1, generation=0, rank=rank) for rank in range(3)]
    logs[0].parent.mkdir()
    for log in logs:
        clock.add(log)
    for time_s in (100, 200, 300):
        for log in logs:
            with log.open("a") as file:
                file.write(f"at {time_s}\n")
        clock.tick(time_s)
    return run


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--rank", "0,2", "-n", "2"], ["0: at 300", "2: at 300"]),
        (["--rank=0", "--rank=2", "--tail=2"], ["0: at 300", "2: at 300"]),
        (["--rank=1-2", "--since=1970-01-01T00:04+00:00"], ["1: at 300", "2: at 300"]),
        (["--rank=1", "--since=1970-01-01T00:03+00:00", "-n1"], ["1: at 300"]),
        (["-n", "0"], []),
    ],
)
def test_logs_select_lines_by_rank_time_and_number(words, lines, printed, capsys):
    assert main.run(["logs", *words]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_logs_since_omit_output_of_older_jobs(printed, capsys):
    assert main.run(["logs", "--since", "1970-01-01T00:04+00:00"]) == 0
    assert capsys.readouterr().err == ""
    assert main.run(["logs", "--since", "1970-01-01T00:01:30+00:00"]) == 0
    assert capsys.readouterr().err == "of the job\n"


def test_logs_without_recent_lines_are_an_error(printed, capsys):
    assert main.run(["logs", "--rank=1", "--since=2h"]) == 66
    assert "rank 1 of the run" in (message := capsys.readouterr().err)
    assert "has not printed anything since 2h" in message


@pytest.mark.parametrize("words", [["--rank", "7"], ["--rank=0-3", "-f"]])
def test_logs_of_a_rank_that_does_not_exist_are_an_error(words, printed, capsys):
    assert main.run(["logs", *words]) == 66
    message = capsys.readouterr().err
    assert "has no rank" in message
    assert "its ranks are 0-2" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "x"], "'x' is not a rank"),
        (["--rank", "0,,1"], "'' is not a rank"),
        (["--rank", "5-3"], "'5-3' is not a rank"),
        (["--rank", "0-99999999"], "'0-99999999' is not a rank"),
        (["--since", "90"], "invalid value for --since: '90'"),
        (["--since", "soon"], "write how long ago (90s, 10m, 1h30m, 2d)"),
    ],
)
def test_an_invalid_choice_of_lines_is_an_error(words, message, printed, capsys):
    assert main.run(["logs", *words]) == 2
    assert message in capsys.readouterr().err


def traceback(rank, *, error="ValueError: boom", mark=""):
    texts = ["Traceback (most recent call last):", '  File "train.py", line 3', "", error]
    return [(rank, f"{mark}{text}") for text in texts]


def fold(folded, *lines):
    numbered = [
        Line(time_s=0.0, rank=rank, number=number, text=text)
        for number, (rank, text) in enumerate(lines)
    ]
    return [(line.rank, line.text) for line in folded.fold(numbered)]


def test_a_traceback_of_several_ranks_is_printed_once():
    folded = following.FoldedTracebacks()
    first, second = traceback(0), traceback(1)
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    same = "(same traceback as rank 0)"
    assert fold(folded, (2, "hello"), *mixed, (1, "bye")) == [
        *((2, "hello"), *first, (1, f"ValueError: boom {same}"), (1, "bye"))
    ]
    marked = traceback(2, mark="[rank2]: ")  # as torch writes it; read later
    assert fold(folded, *marked) == [(2, f"[rank2]: ValueError: boom {same}")]
    other = traceback(3, error="KeyError: 1")
    assert fold(folded, *other) == other
    assert fold(folded, *first) == first  # after a restart, say


def test_an_unfinished_traceback_is_printed():
    folded, lines = following.FoldedTracebacks(), traceback(0)
    assert fold(folded, *lines[:2]) == lines[:2]
    assert fold(folded, *lines[2:]) == lines[2:]
