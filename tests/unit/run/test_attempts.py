"""Claims by creation: whose an attempt is."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial

import pytest

from echelon.core.jobs import Job
from echelon.errors import UnavailableError
from echelon.run.attempts import (
    Outcome,
    attempts,
    begin_attempt,
    claiming_next,
    find_durations,
    give_back,
    is_given_back,
    is_of_use,
    is_superseded,
    outcome,
    own_attempt,
    record_own_job,
    submit_attempt,
)
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from echelon.run.events import SignalIgnored
from echelon.run.history import newest_checkpoint, read_history
from echelon.run.verdict import Failure, judge
from eventlines import raw


@pytest.fixture
def run(tmp_path):
    return RunDir.create(tmp_path, "r-1")


def test_of_many_that_begin_an_attempt_each_gets_one_of_its_own(run):
    first = str(run.claim_attempt())
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda n: begin_attempt(run, first, f"{n}.0"), range(32)))
    assert sorted(got) == list(range(1, 33))


def test_a_job_that_is_queued_again_begins_the_next_attempt(run):
    number = str(run.claim_attempt())
    assert begin_attempt(run, number, "7.0") == 1
    assert begin_attempt(run, number, "7.0") == 1  # the very same start
    assert begin_attempt(run, number, "7.1") == 2
    assert begin_attempt(run, "", "8.0") == 3


def test_an_attempt_keeps_its_first_owner(run):
    run.claim_attempt()
    assert own_attempt(run, 1, "7.0") == "7.0"
    assert own_attempt(run, 1, "8.0") == "7.0"


def test_what_the_submitter_has_written_is_kept(run):
    submit_attempt(
        run, lambda _: "7", lambda job_id: Job(id=job_id, state="PENDING", output="/o"), after="6"
    )
    found = record_own_job(run, 1, "7")
    assert (found.job_id, found.after, found.output) == ("7", "6", "/o")
    assert [path.name for path in run.attempt(1).iterdir()] == ["job.json"]


def test_one_that_nobody_has_written_down_writes_itself(run):
    run.claim_attempt()
    assert record_own_job(run, 1, "7").job_id == "7"
    assert [one.job_id for one in attempts(run)] == ["7"]


def test_a_job_that_is_queued_is_written_down_whatever_else_fails(run):
    """Nor does anybody hear that it was not queued, and queue another."""

    def look(_):
        assert [one.after for one in attempts(run)] == ["6"]  # it may begin before we are told
        raise UnavailableError("slurmctld is away", hint="")

    assert submit_attempt(run, lambda _: "7", look, after="6").job_id == "7"
    assert [(one.job_id, one.after) for one in attempts(run)] == [("7", "6")]


def test_a_standby_that_nobody_has_needed_is_no_attempt_in_a_users_eyes(run):
    for number, after in (("7", ""), ("8", "7")):
        submit_attempt(run, lambda _, n=number: n, waiting, after=after)
    first, standby = attempts(run)
    assert (is_of_use(run, first), is_of_use(run, standby)) == (True, False)
    own_attempt(run, 2, "8.0")
    assert is_of_use(run, standby)
    run.outcome(2).write_text('{"state": "SKIPPED", "exit_code": 0}')
    assert not is_of_use(run, standby)


def waiting(job_id):
    return Job(id=job_id, state="PENDING")


def over(job_id):
    return Job(id=job_id, state="CANCELLED")


def submit(run, job_id, *, after="", look=over):
    return submit_attempt(run, lambda _: job_id, look, after=after).number


def test_a_standby_that_never_began_leaves_no_gap(run):
    submit(run, "7")
    own_attempt(run, 1, "7.0")
    assert submit(run, "8", after="7") == 2
    assert submit(run, "9") == 2  # it was withdrawn, and somebody resumes the run
    assert [(one.number, one.job_id, one.after) for one in attempts(run)] == [
        (1, "7", ""),
        (2, "9", ""),
    ]
    assert is_given_back(run, "8")
    assert not is_given_back(run, "9")


@pytest.mark.parametrize("begun", [True, False])
def test_a_number_that_somebody_has_or_may_have_yet_is_kept(run, begun):
    submit(run, "7", look=waiting)
    if begun:
        own_attempt(run, 1, "7.0")
    assert submit(run, "8", look=over if begun else waiting) == 2


def test_a_number_is_kept_where_nobody_knows_about_its_job(run):
    submit(run, "7", look=waiting)

    def look(_):
        raise UnavailableError("slurmctld is away", hint="")

    assert submit(run, "8", look=look) == 2


def test_of_many_that_submit_each_has_a_number_of_its_own(run):
    submit(run, "7")
    own_attempt(run, 1, "7.0")
    submit(run, "8", after="7")
    cancelled = lambda job_id: over(job_id) if job_id == "8" else waiting(job_id)  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda n: submit(run, f"{n}", look=cancelled), range(10, 26)))
    assert len(set(got)) == len(got)
    assert {one.job_id: one.number for one in attempts(run)} == {
        "7": 1,
        **{f"{n}": number for n, number in zip(range(10, 26), got, strict=True)},
    }


def test_a_standby_that_begins_late_does_not_take_the_number_of_another(run):
    submit(run, "7")
    own_attempt(run, 1, "7.0")
    submit(run, "8", after="7")
    give_back(run, attempts(run)[-1])
    assert begin_attempt(run, "2", "8.0") == 2  # a folder of its own, for it has none
    assert submit(run, "9") == 3


def test_an_attempt_that_finds_nothing_to_do_supersedes_nobody(run):
    for owner in ("7.0", "8.0"):
        begin_attempt(run, "", owner)
    assert not is_superseded(run, 1)
    events(run, 2)
    assert not is_superseded(run, 2)
    assert is_superseded(run, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": 1}', '{"exit_code": 0}'])
def test_an_outcome_that_cannot_be_read_is_none(run, text):
    run.claim_attempt()
    run.outcome(1).write_text(text)
    assert outcome(run, 1) is None


def test_an_outcome_of_an_older_version_is_the_end(run):
    run.claim_attempt()
    run.outcome(1).write_text('{"state": "FAILED", "exit_code": 3}')
    assert outcome(run, 1) == Outcome(state="FAILED", exit_code=3, next="")


# --- what came before -------------------------------------------------------------------------


def events(run, number, *records, ended=True):
    run.attempt(number).mkdir(exist_ok=True)
    if ended:
        run.outcome(number).write_text('{"state": "FAILED", "exit_code": 3}')
    with EventWriter(run.events_of(f"controller-{number}"), clock=lambda: 0.0) as writer:
        for kind, data in records:
            writer.write(raw(kind, **data))


def checkpoint(run, step, *, whole=True):
    run.checkpoint(step).mkdir()
    if whole:
        (run.checkpoint(step) / "manifest.json").write_text("{}")


def restart(message):
    return "restart", {"verdict": asdict(judge([Failure(cause="signal", message=message)]))}


def test_the_failures_of_all_attempts_count_in_their_order(run):
    events(run, 1, ("attempt", {"saved": -1}), restart("a"), restart("b"))
    events(run, 2, ("attempt", {"saved": 5}), restart("c"), ("restart", {"verdict": "odd"}))
    assert [failure.message for failure in read_history(run, 3).failures] == ["a", "b", "c"]
    assert [failure.message for failure in read_history(run, 2).failures] == ["a", "b"]
    assert read_history(run, 1).failures == ()


def test_that_ranks_stopped_where_it_was_agreed_is_remembered(run):
    events(run, 1, ("attempt", {"saved": -1}), ("stopped", {"generation": 0, "step": 3}))
    assert not read_history(run, 1).listened
    assert read_history(run, 2).listened


def test_an_attempt_that_ended_without_a_word_is_a_failure(run):
    events(run, 1, ("attempt", {"saved": -1}), ended=False)
    run.attempt(2).mkdir()  # a standby that never began
    assert [failure.cause for failure in read_history(run, 3).failures] == ["lost node"]


@pytest.mark.parametrize(
    ("saved", "now", "stalled"),
    [
        ((), None, 0),
        ((-1,), None, 1),
        ((-1,), 5, 0),
        ((-1, 5), 5, 1),
        ((-1, 5, 5), 5, 2),
        ((5, 5, 6), 7, 0),
    ],
)
def test_attempts_that_saved_nothing_new_are_counted(run, saved, now, stalled):
    for number, step in enumerate(saved, start=1):
        events(run, number, ("attempt", {"saved": step}))
    if now is not None:
        checkpoint(run, now)
    assert read_history(run, len(saved) + 1).stalled == stalled


def test_a_checkpoint_without_a_manifest_does_not_exist(run):
    assert newest_checkpoint(run) == -1
    checkpoint(run, 9, whole=False)
    assert newest_checkpoint(run) == -1
    checkpoint(run, 8)
    (run.checkpoints / "best.json").write_text(json.dumps({}))
    assert newest_checkpoint(run) == 8


def test_an_attempt_that_wrote_files_made_progress_where_no_checkpoint_is_reported(run):
    for number in (1, 2, 3):
        events(run, number, ("attempt", {"saved": -1}))
    ended = {"state": "TIMEOUT", "exit_code": 75, "next": "standby", "why": "", "progress": "files"}
    run.outcome(1).write_text(json.dumps(ended))
    assert read_history(run, 4).stalled == 2
    run.outcome(2).write_text(json.dumps(ended))
    assert read_history(run, 4).stalled == 1


def test_of_two_who_wait_one_submits_what_follows(run):
    run.claim_attempt()
    with claiming_next(run, 1) as ours, claiming_next(run, 1) as theirs:
        assert (ours, theirs) == (True, False)


def test_who_cannot_submit_what_follows_leaves_it_to_others(run):
    run.claim_attempt()
    with pytest.raises(UnavailableError), claiming_next(run, 1):
        raise UnavailableError("away", hint="later")
    with claiming_next(run, 1) as ours:
        assert ours


def test_durations_come_from_both_ends_of_the_events(run):
    for number, times in ((1, (100.0, 105.0, 160.0)), (3, (200.0, 230.0)), (4, (300.0, 250.0))):
        run.attempt(number).mkdir()
        (run.attempt(number) / "job.json").write_text('{"job_id": "7"}')
        moments = iter(times)
        with EventWriter(
            run.events_of(f"controller-{number}"), clock=partial(next, moments)
        ) as log:
            for _ in times:
                log.write(SignalIgnored(signal=10))
    with run.events_of("controller-3").open("a") as torn:
        torn.write('{"time": 9')
    run.attempt(5).mkdir()  # it has not begun
    (run.attempt(5) / "job.json").write_text('{"job_id": "8"}')
    known = attempts(run)
    assert find_durations(run, known) == [60, 30, 0]
    os.utime(run.events_of("controller-4"), (250, 250))
    assert find_durations(run, known, 310.0) == [60, 30, 10]
    run.events_of("controller-1").write_text("no event\n")
    assert find_durations(run, known[:1], 310.0) == []


@pytest.mark.parametrize("days", [10, -10])
@pytest.mark.parametrize("measured", [True, False])
def test_a_clock_that_was_set_adds_nothing_to_the_time_of_a_running_attempt(run, days, measured):
    """Records keep their clock; the file system follows the one that was set."""
    set_s = days * 86400.0
    run.attempt(1).mkdir()
    (run.attempt(1) / "job.json").write_text('{"job_id": "7"}')
    newest = run.events_of("controller-1")
    moments = iter((1e9, 1e9 + 100))
    with EventWriter(newest, clock=partial(next, moments)) as log:
        log.write(SignalIgnored(signal=10))
        log.write(SignalIgnored(signal=10))
    if measured:
        os.utime(newest, (1e9 + 100,) * 2)
        newest = run.telemetry(1, 0, 0)
        newest.parent.mkdir()
        newest.write_text('{"time":1000000160,"count":1}\n')
    written_s = 1e9 + set_s + (160 if measured else 100)
    os.utime(newest, (written_s,) * 2)
    took_s = find_durations(run, attempts(run), 1e9 + 161 + set_s)
    assert took_s == [161]
