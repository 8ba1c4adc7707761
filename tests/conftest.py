"""What all tests share: nothing may be skipped in CI, and nothing may leak."""

import os
import threading

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        for folder in ("slurm", "browser"):
            if f"/tests/{folder}/" in str(item.path):
                item.add_marker(folder)


@pytest.fixture(autouse=True)
def _no_leaks():
    """Fail a test that leaves variables or threads behind: the next one would inherit them."""
    variables, threads = dict(os.environ), set(threading.enumerate())
    yield
    now = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    variables.pop("PYTEST_CURRENT_TEST", None)
    assert now == variables, "the test changed os.environ"
    left = {thread for thread in threading.enumerate() if thread.is_alive()} - threads
    assert not left, f"the test left threads behind: {left}"
