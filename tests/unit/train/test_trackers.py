import threading

import pytest

from echelon.errors import UsageError
from echelon.train import trackers
from echelon.train.trackers import Tracker, check_loggers


class Connection:
    """A tracker's run; the first calls fail."""

    def __init__(self, failures=0):
        self.failures, self.steps, self.ended = failures, [], None

    def open(self):
        self._perhaps_fail()
        return self

    def send(self, records):
        self._perhaps_fail()
        self.steps += [record.step for record in records]

    def finish(self, *, complete):
        self.ended = complete

    def _perhaps_fail(self):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no\nanswer")


@pytest.fixture
def track(monkeypatch):
    said = []

    def start(connection, **options):
        monkeypatch.setitem(trackers._KINDS, "wandb", connection.open)
        return Tracker("wandb", said.append, **options), said

    return start


@pytest.mark.parametrize("complete", [True, False])
def test_all_records_arrive_in_order_before_the_end(track, complete):
    connection = Connection()
    tracker, said = track(connection)
    for step in range(1000):
        tracker.log(step, {"loss": 1.0})
    tracker.close(complete=complete)
    assert connection.steps == list(range(1000))
    assert connection.ended is complete
    assert not said


def test_a_server_that_comes_back_gets_what_it_missed(track):
    connection = Connection(failures=3)
    tracker, said = track(connection, retry_s=0.001)
    tracker.log(1, {})
    while connection.failures:
        threading.Event().wait(0.001)
    tracker.log(2, {})
    tracker.close(complete=True)
    assert connection.steps == [1, 2]
    assert said[0] == "cannot send metrics to wandb, retrying: no answer"
    assert said[-1] == "sending metrics to wandb again"


def test_a_server_that_stays_away_ends_no_training(track):
    tracker, said = track(Connection(failures=10))
    tracker.log(1, {})
    tracker.close(complete=True)
    assert said[-1] == "the last metrics did not reach wandb: no answer"


def test_an_end_does_not_wait_for_a_server_without_answer(track, monkeypatch):
    monkeypatch.setattr(trackers, "_CUT_S", 0.01)
    answer = threading.Event()
    connection = Connection()
    monkeypatch.setattr(connection, "send", lambda _: answer.wait())
    tracker, said = track(connection)
    tracker.log(1, {})
    tracker.close(complete=False)
    answer.set()
    assert said == ["wandb did not take the last metrics within 0.01 s"]


def test_what_has_no_room_is_counted(track, monkeypatch):
    monkeypatch.setattr(trackers, "_MOST_WAITING", 2)
    answer = threading.Event()
    connection = Connection()
    monkeypatch.setattr(connection, "open", lambda: answer.wait() and connection)
    tracker, said = track(connection)
    for step in range(5):
        tracker.log(step, {})
    answer.set()
    tracker.close(complete=True)
    assert connection.steps == [4]
    assert said == ["wandb was too slow: 4 records are missing there"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("wandb", "loggers='wandb' is a string"),
        (["tensorbord"], "unknown logger 'tensorbord'"),
        (["tensorboard", "mlflow"], "needs the package mlflow"),
    ],
)
def test_wrong_loggers_are_refused(names, message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError, match=message):
        check_loggers(names)
