"""The user's command for the end of a run: what it is told, and what it may do to us."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from echelon.core.shell import FakeShell, LocalShell, Result
from echelon.core.waiting import wait_until
from echelon.errors import MissingProgramError, TimedOutError
from echelon.launch.controller import notify as notifying
from echelon.launch.controller.finalize import Finalizer
from echelon.launch.controller.notify import Notifier, shorten
from echelon.run.attempts import Outcome
from echelon.run.directory import RunDir
from echelon.run.history import History
from echelon.run.journal import Journal
from echelon.run.verdict import Failure, judge
from echelon.spec.job_spec import JobSpec
from unit.launch.fakes import make_backend

HOSTILE = "ValueError: $(touch x); `touch x`\n'\"\0\x1b[31m\ud800 \N{PARTY POPPER}"
PRINT = 'printf "%s|" "$ECHELON_RUN" "$ECHELON_STATE" "$ECHELON_REASON" "$ECHELON_RUN_DIR"'


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "r-1")


def make(run, command, shell=None, **environ):
    environ = {"PATH": os.environ["PATH"], **environ}
    return Notifier(command, run=run, shell=shell or LocalShell(), environ=environ)


def test_a_command_is_told_what_it_is_about(run):
    assert make(run, PRINT).tell(1, "FAILED", "rank 1: no") == ""
    assert run.notify_log.read_text() == f"r-1|FAILED|rank 1: no|{run.path}|"


def test_a_hostile_reason_stays_in_its_variable(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make(run, PRINT).tell(1, "FAILED", HOSTILE) == ""
    told = run.notify_log.read_text().split("|")[2]
    assert told.startswith("ValueError: $(touch x); `touch x` '\"�")
    assert "\n" not in told
    assert told.endswith("\N{PARTY POPPER}")
    assert not (tmp_path / "x").exists()


def test_a_reason_is_one_line_that_a_variable_can_hold(run):
    assert shorten("a\r\n\tb\u2028c") == "a b c"
    assert len(shorten("x" * 10**6)) == 500
    assert make(run, PRINT).tell(1, "FAILED", "x" * 10**6) == ""


def test_what_is_between_our_own_processes_is_not_told(run):
    variables = {"ECHELON_HERE": "1", "ECHELON_CONTROLLER": "secret", "SLURM_JOB_ID": "7"}
    make(run, "env", **variables).tell(1, "COMPLETED", "")
    told = run.notify_log.read_text().splitlines()
    assert "SLURM_JOB_ID=7" in told
    assert not any(line.startswith(("ECHELON_HERE", "ECHELON_CONTROLLER")) for line in told)


def test_without_a_command_nothing_is_run(run):
    assert make(run, "", FakeShell()).tell(1, "FAILED", "x") == ""


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Result(argv=(), code=3), "exited with code 3; see "),
        (TimedOutError("'bash' did not end", hint=""), "within 30 s and was killed"),
        (MissingProgramError("bash"), "bash"),
        (OSError(7, "Argument list too long"), "Argument list too long"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_else_happens(run, answer, wrong):
    def reply(_argv):
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert wrong in make(run, "x", FakeShell(answers={"bash": reply})).tell(1, "FAILED", "x")


@pytest.mark.parametrize("command", ["sleep 60", "sleep 60 & wait", "sleep 60 &"])
def test_a_command_that_does_not_end_is_killed_with_what_it_started(run, monkeypatch, command):
    monkeypatch.setattr(notifying, "LIMIT_S", 0.5)
    began_s = time.monotonic()
    said = make(run, command, MARK=str(run.path)).tell(1, "FAILED", "x")
    assert "did not exit within 0.5 s and was killed" in said
    assert time.monotonic() - began_s < 5
    assert wait_until(lambda: not _find(f"MARK={run.path}"), timeout_s=5)


def _find(variable):
    """Return the processes that have a variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone, or another user's
            found += [path] * (os.fsencode(variable) in path.read_bytes())
    return found


def test_one_that_cannot_be_killed_does_not_hold_us(run, monkeypatch):
    monkeypatch.setattr(notifying, "LIMIT_S", 0.1)
    monkeypatch.setattr(notifying, "_LATE_S", 0.1)
    over = threading.Event()
    shell = FakeShell(answers={"bash": lambda argv: over.wait(30) and Result(argv=tuple(argv))})
    assert "cannot be killed" in make(run, "x", shell).tell(1, "FAILED", "x")
    over.set()
    for thread in threading.enumerate():
        if thread.name == "notifier":
            thread.join()


def test_where_its_log_cannot_be_written_it_runs_all_the_same(run, tmp_path):
    run.notify_log.mkdir()
    assert make(run, f"touch {tmp_path}/ran").tell(1, "FAILED", "x") == ""
    assert (tmp_path / "ran").exists()


# --- when -----------------------------------------------------------------------------------------


class Heard:
    """Notes what it is to tell."""

    def __init__(self, wrong=""):
        self.wrong, self.told = wrong, []

    def owe(self, attempt, state, reason):
        pass

    def tell(self, attempt, state, reason):
        assert attempt == 1
        self.told.append((state, reason))
        return self.wrong


@pytest.fixture
def conclude(run):
    """Makes a conclusion that has been reached, and returns what was said about it."""
    said = []
    journal = Journal(run, 1, said.append)

    def conclude(outcome, verdict=None, *, notifier):
        conclusion = Finalizer(
            request=JobSpec(script="train.py", notify="x"),
            history=History(),
            backend=make_backend(),
            journal=journal,
            notifier=notifier,
            environ={},
        )
        conclusion.notify(outcome, verdict)
        journal.close()
        return said

    yield conclude
    journal.close()


FAILED = judge([Failure(cause="exception", message="ValueError: no", rank=1, node="node1", step=3)])


@pytest.mark.parametrize("following", ["standby", "requeue"])
def test_a_job_that_hands_over_tells_nobody(run, conclude, following):
    heard = Heard()
    conclude(Outcome(state="TIMEOUT", exit_code=75, next=following), FAILED, notifier=heard)
    assert heard.told == []
    assert not run.events_of("controller-1").exists()


@pytest.mark.parametrize("following", ["", "wanted"])
def test_a_run_that_does_not_go_on_by_itself_tells_why(conclude, following):
    heard = Heard()
    conclude(Outcome(state="FAILED", exit_code=1, next=following), FAILED, notifier=heard)
    assert heard.told == [("FAILED", "rank 1 on node1 at step 3: ValueError: no")]


def test_a_run_that_is_done_has_no_reason(conclude):
    heard = Heard()
    conclude(Outcome(state="COMPLETED", exit_code=0), notifier=heard)
    assert heard.told == [("COMPLETED", "")]


def test_what_was_wrong_with_the_command_is_an_event(run, conclude):
    said = conclude(Outcome(state="COMPLETED", exit_code=0), notifier=Heard("exited with code 3"))
    assert said == ["r-1: --notify command: exited with code 3"]
    told = run.events_of("controller-1").read_text()
    assert '"kind":"notified","state":"COMPLETED","wrong":"exited with code 3"' in told


# --- what is owed ---------------------------------------------------------------------------------


def owe(run, notifier, *, ended=True):
    run.claim_attempt()
    notifier.owe(1, "FAILED", "no")
    if ended:
        run.outcome(1).write_text('{"state": "FAILED", "exit_code": 1}')


def test_nobody_sends_what_its_owner_is_about_to_send(run):
    first, second = make(run, PRINT), make(run, PRINT)
    owe(run, first)
    assert second.send_owed() == []
    assert not run.notify_log.exists()
    assert first.tell(1, "FAILED", "no") == ""
    assert second.send_owed() == []
    assert run.notify_log.read_text() == f"r-1|FAILED|no|{run.path}|"
    assert run.sent_notice(1).exists()


def test_of_many_that_send_what_is_owed_one_does(run):
    run.claim_attempt()
    run.outcome(1).write_text('{"state": "FAILED", "exit_code": 1}')
    run.notice(1).write_text('{"state": "FAILED", "reason": "no"}')
    senders = [make(run, "echo sent") for _ in range(8)]
    threads = [threading.Thread(target=one.send_owed, kwargs={"wait_s": 30}) for one in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.notify_log.read_text() == "sent\n"


def test_without_an_outcome_nothing_is_sent(run):
    """A controller that was killed before it has not ended: the next attempt does the work."""
    owe(run, make(run, PRINT), ended=False)
    assert make(run, PRINT).send_owed() == []
    assert run.notice(1).exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "FAILED"}', "[" * 60_000])
def test_a_damaged_record_is_not_sent(run, text):
    run.claim_attempt()
    run.outcome(1).write_text('{"state": "FAILED", "exit_code": 1}')
    run.notice(1).write_text(text)
    assert make(run, PRINT).send_owed() == []
    assert not run.notify_log.exists()


def test_the_command_does_not_inherit_the_lock(run):
    notifier = make(run, "ls -l /proc/self/fd")
    owe(run, notifier)
    assert notifier.tell(1, "FAILED", "no") == ""
    assert "notify.json" not in run.notify_log.read_text()


def test_a_command_runs_in_the_folder_of_the_job(run, tmp_path):
    environ = {"PATH": os.environ["PATH"]}
    notifier = Notifier("pwd", run=run, shell=LocalShell(), environ=environ, folder=str(tmp_path))
    assert notifier.tell(1, "COMPLETED", "") == ""
    assert run.notify_log.read_text() == f"{tmp_path}\n"
