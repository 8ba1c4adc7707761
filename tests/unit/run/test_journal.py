"""What an attempt leaves behind where storage does not take it."""

import errno
import json
import threading
import time

import pytest

from echelon.core.atomic_file import write_atomic
from echelon.run import journal as journals
from echelon.run.attempts import Outcome
from echelon.run.directory import RunDir
from echelon.run.event_log import EventReader
from echelon.run.events import AttemptEnded, ControllerEvent, SlotsCounted
from echelon.run.journal import Journal
from echelon.run.verdict import Failure, judge

DONE = Outcome(state="COMPLETED", exit_code=0)


@pytest.fixture
def said():
    return []


@pytest.fixture
def journal(tmp_path, said):
    run = RunDir.create(tmp_path, "a-run")
    run.attempt(1).mkdir()
    return Journal(run, 1, said.append)


def test_all_is_written_when_it_is_closed(journal, said):
    journal.note(SlotsCounted(slots=1))
    journal.report("something for people")
    journal.leave_outcome(DONE)
    journal.close()
    events = EventReader(journal.run.events_of("controller-1"), ControllerEvent).read()
    ended = {"state": "COMPLETED", "exit_code": 0, "next": "", "why": "", "progress": ""}
    assert [record.event for record in events] == [SlotsCounted(slots=1), AttemptEnded(**ended)]
    assert json.loads(journal.run.outcome(1).read_text()) == ended
    assert said == ["something for people"]


@pytest.mark.parametrize("days", [10, -10])
def test_a_clock_that_is_set_moves_no_event_and_is_noted_once(tmp_path, days):
    run = RunDir.create(tmp_path, "a-run")
    run.attempt(1).mkdir()
    set_s = 0.0
    journal = Journal(run, 1, print, clock=lambda: time.time() + set_s)
    began_s = time.time()
    journal.note(SlotsCounted(slots=1))
    set_s = days * 86400.0
    journal.note(SlotsCounted(slots=2))
    journal.note(SlotsCounted(slots=3))
    journal.close()
    records = EventReader(run.events_of("controller-1"), ControllerEvent).read()
    assert [record.event.kind for record in records] == ["slots", "clock", "slots", "slots"]
    assert records[1].event.seconds == pytest.approx(set_s, abs=1)
    assert all(abs(record.time_s - began_s) < 60 for record in records)


def test_words_for_people_come_before_the_outcome(journal):
    """Whoever sees the outcome reads no more."""
    before = []
    journal._say = lambda _text: before.append(not journal.run.outcome(1).exists())
    for _ in range(100):
        journal.report("a line")
    journal.leave_outcome(DONE)
    journal.close()
    assert before == [True] * 100


def test_files_come_before_the_words_about_them(journal):
    there = []
    journal._say = lambda _text: there.append(journal.run.verdict.exists())
    journal.leave_verdict(judge([Failure(cause="hang", message="nothing moves")]))
    journal.report("it hangs")
    journal.leave_outcome(DONE)
    journal.close()
    assert there == [True]


def test_a_failing_write_is_tried_again(journal, said, monkeypatch):
    errors = [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "No space left")]

    def write(path, content):
        if errors:
            raise errors.pop()
        write_atomic(path, content)

    monkeypatch.setattr(journals, "write_atomic", write)
    journal.leave_outcome(Outcome(state="FAILED", exit_code=1))
    journal.close()
    assert json.loads(journal.run.outcome(1).read_text())["state"] == "FAILED"
    assert said == []


def test_a_journal_gives_storage_up_and_says_so(journal, said, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(journals, "write_atomic", lambda *_: gate.wait())
    monkeypatch.setattr(journals, "PATIENCE_S", 0.2)
    monkeypatch.setattr(journals, "_SOON_S", 0.1)
    journal.leave_outcome(Outcome(state="FAILED", exit_code=1))
    journal.close()
    place = journal.run.path
    assert said == [
        f"waiting 0.2 s for the storage of {place}: it does not answer",
        f"1 records of {place} were not written: storage did not answer",
    ]
    gate.set()
    assert journal._events.close(10)
