"""Polling for a condition that sends no event."""

import time
from collections.abc import Callable


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
