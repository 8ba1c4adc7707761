"""Agents that are lost while their nodes are well: they come back, and their ranks with them."""

import json
import os
import signal
from pathlib import Path

import pytest

from echelon.core.waiting import wait_until
from echelon.launch.controller.agent_recovery import COMEBACKS
from local.liverun import PREAMBLE, START_S, live_run
from slurm.survival import SURVIVOR, Chain, check_samples

ENDLESS = {"script": SURVIVOR.read_text(), "arguments": ["100000", "0.05"]}
LATE = "--set=node_check=while [ -e shut ]; do sleep 0.1; done"
"""A node is well, and its agent comes, when the test says so."""
PLAIN = """
begin()
ready()
world = dist.get_world_size()
while True:
    over = torch.tensor([float(Path("over").exists())])
    dist.all_reduce(over)
    Path(f"stepped-{world}").touch()
    if over:
        break
    time.sleep(0.02)
"""


def kill_agent(run, node):
    os.kill(run.find("agent", node), signal.SIGKILL)


def await_step(run, generation):
    """Wait until ranks of a generation have taken a step."""
    chain = Chain(folder=run.folder, environ={}, process=run.command)
    turns = lambda: {turn for turn, _, _ in chain.records()}  # noqa: E731
    assert wait_until(lambda: f".{generation}" in turns(), timeout_s=START_S), run.output
    return chain


def stop(run, chain):
    """Stop a training and look at its samples."""
    os.kill(run.command.pid, signal.SIGINT)
    assert run.wait() == 130, run.output
    steps = run.events("stopped")[-1]["step"]
    # What an earlier generation did beyond it was lost, and would have been done again.
    check_samples([record for record in chain.records() if record[1] <= steps], steps)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def worlds(run):
    return [event["world_size"] for event in run.events("generation")]


def test_an_agent_that_was_killed_comes_back(tmp_path):
    with live_run(tmp_path, options=["--nodes=2", "--procs=1"], **ENDLESS) as run:
        await_step(run, 0)
        kill_agent(run, 1)
        stop(run, await_step(run, 1))
        assert worlds(run) == [2, 2]
        assert [event["node"] for event in run.events("joined")][2:] == [1]
        assert run.output.count("restart 1 of 3: node1: its agent was lost") == 1, run.output


@pytest.mark.full
def test_agents_that_are_killed_one_after_the_other_all_come_back(tmp_path):
    with live_run(tmp_path, options=["--nodes=2", "--procs=1", LATE], **ENDLESS) as run:
        await_step(run, 0)
        (tmp_path / "shut").touch()
        kill_agent(run, 1)
        run.await_events("lost", 1)
        kill_agent(run, 0)  # while the other is waited for
        run.await_events("lost", 2)
        (tmp_path / "shut").unlink()
        stop(run, await_step(run, 1))
        assert worlds(run) == [2, 2]


@pytest.mark.full
def test_an_agent_that_was_stopped_is_replaced_and_its_ranks_with_it(tmp_path):
    with live_run(tmp_path, options=["--nodes=2", "--procs=1"], **ENDLESS) as run:
        await_step(run, 0)
        old = json.loads((tmp_path / "where-1").read_text())["pid"]
        os.kill(run.find("agent", 1), signal.SIGSTOP)
        chain = await_step(run, 1)
        assert wait_until(lambda: not is_alive(old), timeout_s=30)
        stop(run, chain)
        assert worlds(run) == [2, 2]


@pytest.mark.full
def test_ranks_make_room_for_a_node_that_is_back(tmp_path):
    options = ["--nodes=1:2", "--procs=1", LATE]
    with live_run(tmp_path, options=options, **ENDLESS) as run:
        await_step(run, 0)
        (tmp_path / "shut").touch()
        kill_agent(run, 1)
        await_step(run, 1)
        (tmp_path / "shut").unlink()
        stop(run, await_step(run, 2))
        assert worlds(run) == [2, 1, 2]
        (lost, room, _) = run.events("spent")
        assert (lost["again"], room["again"]) == (True, True)
        assert room["last"] == run.events("stopped")[0]["step"]
        assert "continues with 2 nodes" in run.output
        assert len(run.events("restart")) == 1


@pytest.mark.full
def test_ranks_that_do_not_listen_are_left_in_peace(tmp_path):
    options = ["--nodes=1:2", "--procs=1", LATE]
    with live_run(tmp_path, PREAMBLE + PLAIN, options) as run:
        run.await_ranks(range(2))
        (tmp_path / "shut").touch()
        kill_agent(run, 1)
        assert wait_until((tmp_path / "stepped-1").exists, timeout_s=START_S), run.output
        (tmp_path / "shut").unlink()
        run.await_events("joined", 3)
        wait = "node1 is idle: these ranks cannot make room"
        assert wait_until(lambda: wait in run.output, timeout_s=START_S), run.output
        (tmp_path / "over").touch()
        assert run.wait() == 0, run.output
        assert worlds(run) == [2, 1]


@pytest.mark.full
def test_a_node_that_is_lost_again_and_again_stays_away(tmp_path):
    options = ["--nodes=1:2", "--procs=1", "--restarts=9"]
    with live_run(tmp_path, options=options, **ENDLESS) as run:
        for count in range(1, 2 + COMEBACKS):
            run.await_events("joined", 1 + count)
            run.await_events("generation", count)
            kill_agent(run, 1)
            run.await_events("lost", count)
        run.await_events("generation", 2 + COMEBACKS)
        assert worlds(run) == [2] * (1 + COMEBACKS) + [1]
