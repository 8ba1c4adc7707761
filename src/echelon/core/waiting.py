"""Waiting for what sends no event: one loop, and what makes it patient and cheap."""

import math
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from echelon.errors import EchelonError, TimedOutError

R = TypeVar("R")


class Clock:
    """The monotonic clock. Tests pass one whose time passes only where something sleeps."""

    def now_s(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def sleep(self, length_s: float) -> None:
        """Let time pass."""
        time.sleep(length_s)


CLOCK = Clock()


def wait_for(
    look: Callable[[], R | None],
    *,
    every_s: float,
    until_s: float = math.inf,
    late: Callable[[], TimedOutError] = lambda: TimedOutError(
        "it was not ready in time", hint="wait longer, or look for the cause"
    ),
    clock: Clock = CLOCK,
) -> R:
    """Call a function until it returns something, and return that.

    Args:
        look: the function; it returns None as long as there is nothing.
        every_s: seconds between two calls.
        until_s: when to give up, on the clock.
        late: returns the error to raise then.
        clock: the clock.

    Raises:
        TimedOutError: there was nothing in time.
    """
    while (found := look()) is None:
        left_s = until_s - clock.now_s()
        if left_s <= 0:
            raise late()
        clock.sleep(min(every_s, left_s))
    return found


class Retry(Protocol):
    """Decides whether an error may pass."""

    def pause_s(self, error: EchelonError | OSError) -> float:
        """Return how long to wait before the next call; raise the error if it will not pass."""

    def succeed(self) -> None:
        """Note that a call succeeded."""


def patient(
    look: Callable[[], R | None], retry: Retry, clock: Clock = CLOCK
) -> Callable[[], R | None]:
    """Return a function that returns None instead of raising an error that may pass."""
    next_s = -math.inf

    def step() -> R | None:
        nonlocal next_s
        if clock.now_s() < next_s:
            return None
        try:
            found = look()
        except (EchelonError, OSError) as error:
            next_s = clock.now_s() + retry.pause_s(error)
            return None
        retry.succeed()
        return found

    return step


class Cached(Generic[R]):
    """Asks a question at most once in so many seconds, and repeats the answer meanwhile."""

    def __init__(self, ask: Callable[[], R], fresh_s: float, clock: Clock = CLOCK) -> None:
        self._ask, self._fresh_s, self._clock = ask, fresh_s, clock
        self._answer: tuple[float, R] | None = None

    def __call__(self) -> R:
        now_s = self._clock.now_s()
        if self._answer is None or now_s - self._answer[0] >= self._fresh_s:
            self._answer = now_s, self._ask()
        return self._answer[1]

    def forget(self) -> None:
        """Ask again the next time."""
        self._answer = None


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.02
) -> bool:
    """Wait for a condition; return whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
