"""Another user floods the controller with connections: the nodes still join."""

import pytest

from connection_flood import flood
from echelon.core.waiting import wait_until
from local.liverun import live_run
from procfs import listeners
from requirements import require_root

# The flood takes a core.
pytestmark = pytest.mark.alone

SCRIPT = "#!/bin/sh\nexit 0\n"
OPTIONS = ["--nodes=4", "--procs=1", "--set=preload=", "--set=telemetry=false"]
FLOODS = {
    "silent": {"holds": True},
    "reset": {"holds": False},
    "garbage": {"holds": False, "says": b"GET / HTTP/1.1\r\n\r\n"},
}
ROUNDS = [pytest.param(n, marks=[pytest.mark.full] if n else []) for n in range(7)]
"""With three floods each, 21 in all."""


def await_listening(run):
    """Return where the controller listens, as soon as it does."""
    found = []

    def listens():
        controllers = [one.pid for one in run.processes() if one.role == "controller"]
        found[:] = [address for pid in controllers for address in listeners(pid)]
        return bool(found)

    assert wait_until(listens, timeout_s=60, interval_s=0.005), run.output
    return found[0]


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("kind", FLOODS)
def test_four_nodes_join_under_a_flood_of_connections(tmp_path, kind, round_):
    require_root("to be another user")
    with (
        live_run(tmp_path, SCRIPT, OPTIONS) as run,
        flood(await_listening(run), **FLOODS[kind]),
    ):
        assert run.wait(120) == 0, run.output
        assert len(run.events("joined")) == 4
        assert run.events("lost") == []
        assert run.events("stranger"), "nobody was turned away: was there a flood?"
