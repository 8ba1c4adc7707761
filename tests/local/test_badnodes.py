"""Nodes that fail their check, and nodes that cost a run its ranks, in real runs."""

import json
import os
import signal
import time

import pytest

from echelon.core.waiting import wait_until
from echelon.run.node_record import bad_nodes, read_entries, record_path
from local.liverun import START_S, live_run

SCRIPT = 'import os\nprint("one of", os.environ["WORLD_SIZE"], os.environ.get("ECHELON_NODE"))\n'
WAITING = """\
import pathlib, time
pathlib.Path("part").write_text("0")
pathlib.Path("part").rename("ready-0")
while not pathlib.Path("go").exists():
    time.sleep(0.02)
"""
ONLY_0 = "--set=node_check=echo not today; test $ECHELON_NODE = 0"
KILLED = "import os\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\n"
PLAIN = ["--procs=1", "--set=preload="]


@pytest.fixture
def known(tmp_path, monkeypatch):
    """Return what is kept of a cluster, as if the machine were one."""
    environ = {"SLURM_CLUSTER_NAME": "alpha", "XDG_STATE_HOME": str(tmp_path / "state")}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return lambda: read_entries(record_path("alpha", environ))


def noted(run, kind):
    lines = (run.path / "events" / "controller-1.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_a_run_goes_on_without_a_node_that_fails_its_check(tmp_path, known):
    with live_run(tmp_path, SCRIPT, [*PLAIN, "--nodes=1:2", ONLY_0]) as run:
        assert run.wait() == 0, run.output
        assert "one of 1 None" in run.output
        assert "node1 excluded: it failed its check" in run.output
        assert [event["name"] for event in noted(run, "bad node")] == ["node1"]
        assert [event["name"] for event in noted(run, "joined")] == ["node0"]
        assert (run.path / "logs" / "check-1-1.log").read_text() == "not today\n"
    assert set(bad_nodes(known(), now_s=time.time())) == {"node1"}


def test_a_node_that_fails_its_check_is_sent_away_at_once(tmp_path, known):
    with live_run(tmp_path, WAITING, [*PLAIN, "--nodes=1:2", ONLY_0]) as run:
        run.await_ranks([0])

        def agents():
            return [process.node for process in run.processes() if process.role == "agent"]

        assert wait_until(lambda: agents() == [0], timeout_s=10), run.processes()
        # It was told to go; else it would have missed the controller's pulse, and said so.
        assert (run.path / "attempts" / "1" / "agent-1.log").read_text() == ""
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.output


def test_a_run_that_needs_the_node_names_it(tmp_path, known):
    with live_run(tmp_path, SCRIPT, [*PLAIN, "--nodes=2", ONLY_0, "--forgive-after=2d"]) as run:
        assert run.wait() == 69, run.output
        failure = run.verdict()["failure"]
        assert (failure["cause"], failure["node"]) == ("start", "node1")
        said = "it failed its check: node_check exited with code 1: not today"
        assert failure["message"] == said
    (entry,) = known()
    assert (entry.kind, entry.node, entry.reason) == ("excluded", "node1", said)
    assert entry.keep_s == 2 * 24 * 3600


def test_a_check_that_is_wrong_itself_makes_no_node_bad(tmp_path, known):
    with live_run(tmp_path, SCRIPT, [*PLAIN, "--set=node_check=nosuch"]) as run:
        assert run.wait() == 69, run.output
        failure = run.verdict()["failure"]
        assert failure["node"] == ""
        assert failure["message"].startswith("no node passed its check (node[0-1]); node0: ")
        assert "nosuch: command not found" in failure["message"]
    assert known() == []


def test_a_node_that_kills_ranks_again_and_again_is_a_bad_one(tmp_path, known):
    with live_run(tmp_path, KILLED, [*PLAIN, "--restarts=1"]) as run:
        assert run.wait() == 137, run.output
    assert [(entry.kind, entry.node, entry.cause) for entry in known()] == [
        ("mishap", "node1", "signal")
    ] * 2
    assert set(bad_nodes(known(), now_s=time.time())) == {"node1"}


def test_a_users_bug_makes_no_node_bad(tmp_path, known):
    with live_run(tmp_path, "raise ValueError\n", [*PLAIN, "--restarts=1"]) as run:
        assert run.wait() == 1, run.output
    assert known() == []


def test_on_a_machine_of_ones_own_no_node_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SLURM_CLUSTER_NAME", raising=False)
    with live_run(tmp_path, SCRIPT, [*PLAIN, "--nodes=1:2", ONLY_0]) as run:
        assert run.wait() == 0, run.output
    assert not (tmp_path / "state" / "echelon" / "nodes").exists()


def test_a_home_that_cannot_be_written_to_is_told(tmp_path, known):
    (tmp_path / "state").touch()
    with live_run(tmp_path, SCRIPT, [*PLAIN, "--nodes=1:2", ONLY_0]) as run:
        assert run.wait() == 0, run.output
        assert "cannot keep which nodes are bad: " in run.output


def test_a_run_is_stopped_while_a_check_hangs(tmp_path, known):
    check = f"--set=node_check=touch {tmp_path}/begun-$ECHELON_NODE; sleep 600"
    with live_run(tmp_path, SCRIPT, [*PLAIN, check]) as run:
        begun = [tmp_path / f"begun-{node}" for node in range(2)]
        assert wait_until(lambda: all(path.exists() for path in begun), timeout_s=START_S)
        os.kill(run.command.pid, signal.SIGINT)
        assert run.wait() == 130, run.output
        assert wait_until(lambda: not run.processes(), timeout_s=30), run.processes()
    assert known() == []
