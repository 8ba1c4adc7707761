"""Storage that hangs, fails and comes back, as a thread of ours meets it."""

import errno
import os
import threading
from functools import partial

import pytest

from echelon.run.background_writer import AWAY, BackgroundWriter, persist
from echelon.run.event_log import EventLog, EventReader
from echelon.run.events import ControllerEvent, EventsLost
from eventlines import raw


@pytest.fixture
def gate():
    """Open when set: storage that hangs until then."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("echelon.run.background_writer.time.sleep", lambda _s: None)


def fail_with(number, *, times):
    """Return something that fails so often, and then works."""
    left = [OSError(number, os.strerror(number))] * times
    done = []

    def task():
        if left:
            raise left.pop()
        done.append(True)
        return "done"

    return task, done


def read(path):
    return EventReader(path, ControllerEvent).read()


def open_log(path, **more):
    tell_lost = lambda count: EventsLost(count=count)  # noqa: E731
    return EventLog(path, clock=lambda: 1.0, tell_lost=tell_lost, **more)


def numbers(path):
    return [record.data.get("n", record.data.get("count")) for record in read(path)]


def test_a_post_does_not_wait_and_keeps_order(gate):
    writer, done = BackgroundWriter("test"), []
    writer.post(gate.wait)
    for number in range(100):
        writer.post(partial(done.append, number))
    assert not writer.settle(0.01)
    assert (done, writer.undone) == ([], 101)
    gate.set()
    assert writer.close(10)
    assert (done, writer.undone) == (list(range(100)), 0)


def test_a_close_ends_in_time_when_storage_does_not_answer(gate):
    writer = BackgroundWriter("test")
    writer.post(gate.wait)
    assert not writer.close(0.01)
    assert writer.undone == 1
    gate.set()
    assert writer.close(10)


@pytest.mark.parametrize("number", sorted(AWAY | {errno.ENOSPC, errno.EDQUOT}))
def test_what_fails_for_a_while_is_done_in_the_end(number):
    writer = BackgroundWriter("test")
    task, done = fail_with(number, times=5)
    writer.post(task)
    assert writer.close(10)
    assert done
    assert not writer.lost


def test_what_can_never_work_keeps_nobody():
    writer = BackgroundWriter("test")
    for number in (errno.EACCES, errno.EISDIR):
        writer.post(fail_with(number, times=1)[0])
    writer.post(lambda: {}["no"])  # a fault of our own
    assert writer.close(10)
    assert writer.lost == 3
    assert writer.trouble == "KeyError: 'no'"


def test_events_come_in_order_past_a_failure(tmp_path, monkeypatch):
    """The first write is torn, as on a full disk; the handle is then stale."""
    path, real, calls = tmp_path / "a.jsonl", os.write, []

    def write(file, data):
        calls.append(data)
        if len(calls) == 1:
            return real(file, data[:7])
        if len(calls) == 3:
            raise OSError(errno.ESTALE, "stale")
        return real(file, data)

    monkeypatch.setattr("echelon.run.event_log.os.write", write)
    log = open_log(path)
    for number in range(3):
        log.write(raw("tick", n=number))
    assert log.close(10)
    assert numbers(path) == [0, 1, 2]


def test_what_there_was_no_room_for_is_counted_where_it_is_missing(tmp_path, gate):
    path = tmp_path / "a.jsonl"
    log = open_log(path, room=3)
    log.write(raw("tick", n=0))
    assert log.writer.settle(10)
    entered = threading.Event()

    def hang():
        entered.set()
        gate.wait()

    log.writer.post(hang)
    assert entered.wait(10)
    for number in range(1, 8):
        log.write(raw("tick", n=number))
    gate.set()
    assert log.close(10)
    assert [record.event.kind for record in read(path)] == [
        "tick",
        "lost events",
        "tick",
        "tick",
        "tick",
    ]
    assert numbers(path) == [0, 4, 5, 6, 7]
    assert log.writer.lost == 4


def test_events_without_a_folder_are_lost_and_counted(tmp_path):
    log = open_log(tmp_path / "gone" / "a.jsonl")
    log.write(raw("tick"))
    assert log.close(10)
    assert log.writer.lost == 1
    assert "No such file" in log.writer.trouble


def test_persist_gives_up_after_its_time_and_at_errors_that_stay(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr("echelon.run.background_writer.time.monotonic", lambda: next(now))
    assert persist(fail_with(errno.EIO, times=3)[0], within_s=30) == "done"
    for number, times in ((errno.ENOSPC, 1), (errno.EIO, 50)):
        task, done = fail_with(number, times=times)
        with pytest.raises(OSError, match=os.strerror(number)):
            persist(task, within_s=30)
        assert not done
