"""Nothing outlives its owner: whichever process of a run is killed, all of it is gone."""

import pytest

from local.leftovers import KINDS, SCRIPT, WORKERS, await_end, count_workers, kill
from local.liverun import live_run

GONE_S = 2


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left(kind, tmp_path):
    with live_run(tmp_path, SCRIPT, ["--restarts=0"]) as run:
        run.await_ranks()
        assert count_workers(run) == WORKERS
        kill(run, kind, number=1)
        left, _ = await_end(run, timeout_s=GONE_S)
        assert not left
