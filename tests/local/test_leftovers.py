"""Nothing outlives its owner: whichever process of a run is killed, all of it is gone."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from local.leftovers import (
    KINDS,
    MESSY,
    SCRIPT,
    WORKERS,
    await_end,
    count_workers,
    find_files,
    find_left,
    kill,
    remove_files,
)
from local.liverun import live_run

GONE_S = 20
"""Mostly half a second: benchmarks/leftovers.py measures it."""


@contextmanager
def messy_run(folder, options=("--restarts=0",)):
    """A run whose ranks leave files when they are killed; they are removed whatever happens."""
    with live_run(folder, MESSY, options) as run:
        try:
            run.await_ranks()
            yield run
        finally:
            run.clear()
            remove_files(run)


@pytest.mark.parametrize("kind", KINDS)
def test_no_process_is_left_after_a_kill(kind, tmp_path):
    with live_run(tmp_path, SCRIPT, ["--restarts=0"]) as run:
        run.await_ranks()
        assert count_workers(run) == WORKERS
        kill(run, kind, number=1)
        left, _ = await_end(run, timeout_s=GONE_S)
        assert not left


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "agent" else pytest.mark.full) for kind in KINDS],
)
def test_no_files_of_killed_ranks_are_left(kind, tmp_path):
    with messy_run(tmp_path) as run:
        assert len(find_files(run)) >= 4 * (2 + 2 * 3)
        kill(run, kind, number=1)
        left, _ = await_end(run, timeout_s=GONE_S)
        assert not left


@pytest.mark.alone  # an agent of another test would remove it
def test_what_an_agent_leaves_that_is_killed_with_its_guard_the_next_agent_removes(tmp_path):
    with messy_run(tmp_path) as run:
        folder = Path((tmp_path / "scratch-0").read_text())
        for role in ("guard", "agent"):
            os.kill(run.find(role, 0), signal.SIGSTOP)  # neither shall see the other's end
        for role in ("guard", "agent"):
            os.kill(run.find(role, 0), signal.SIGKILL)
        assert wait_until(lambda: find_left(run) == [str(folder)], timeout_s=30), find_left(run)
        (tmp_path / "next").mkdir()
        with live_run(tmp_path / "next", "#!/bin/sh\nexit 0\n", ["--set=preload="]) as another:
            assert another.wait() == 0, another.output
        assert not folder.exists()
