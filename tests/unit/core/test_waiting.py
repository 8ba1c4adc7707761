"""The one wait loop: when it looks, what it gives up on, and what it remembers."""

import pytest

from echelon.core.waiting import Cached, patient, wait_for
from echelon.errors import TimedOutError, UnavailableError, UsageError
from fake_clock import FakeClock


class Retry:
    def __init__(self):
        self.succeeded = 0

    def pause_s(self, error):
        if isinstance(error, UnavailableError):
            return 10
        raise error

    def succeed(self):
        self.succeeded += 1


def answers(*found):
    """Return a function that returns or raises one of these at each call."""
    left = list(found)

    def answer():
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return answer


def test_the_first_answer_is_returned_without_a_pause():
    clock = FakeClock()
    assert wait_for(answers("now"), every_s=1, until_s=-1, clock=clock) == "now"
    assert clock.now_s() == 0


def test_it_looks_once_more_at_the_deadline():
    clock = FakeClock()
    assert wait_for(answers(None, None, "late"), every_s=2, until_s=3, clock=clock) == "late"
    assert clock.now_s() == 3


def test_after_the_deadline_the_given_error_is_raised():
    late = TimedOutError("the run 'x' has not ended in time")
    with pytest.raises(TimedOutError, match="the run 'x'"):
        wait_for(lambda: None, every_s=1, until_s=3, late=lambda: late, clock=FakeClock())


def test_an_error_that_may_pass_is_waited_out():
    clock, retry = FakeClock(), Retry()
    look = patient(answers(UnavailableError("away"), None, "back"), retry, clock)
    assert wait_for(look, every_s=1, clock=clock) == "back"
    assert clock.now_s() == 11
    assert retry.succeeded == 2


def test_another_error_is_raised():
    with pytest.raises(UsageError):
        patient(answers(UsageError("wrong")), Retry(), FakeClock())()


def test_an_answer_is_repeated_as_long_as_it_is_fresh():
    clock = FakeClock()
    cached = Cached(answers(1, 2, 3), 5, clock)
    assert [cached(), cached()] == [1, 1]
    clock.sleep(5)
    assert cached() == 2
    cached.forget()
    assert cached() == 3
