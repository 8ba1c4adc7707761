"""What a controller keeps of its agents' pulses."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.launch.backends.local import LocalStarter
from echelon.launch.backends.stop import Stop
from echelon.launch.pool import agent_pool as module
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.controller_events import Lost, Received
from echelon.launch.protocol.messages import Leave, Note, Pace, Pulse
from echelon.run.events import AgentNote, Heartbeat
from unit.launch.fakes import make_agent


class Nobody(LocalStarter):
    """Starts no agents: the test has its own."""

    def start(self, *_):
        return []


@pytest.fixture
def noted():
    return []


@pytest.fixture
def pool(noted):
    return AgentPool(Nobody(None, 1), noted.append, noted.append)


async def join(pool):
    agent = make_agent(0)
    pool.hear(agent, agent.hello)
    assert await pool.next() == Received(agent=agent, message=agent.hello)
    return agent


def test_an_agent_has_the_pace_of_its_last_pulse(pool):
    async def scenario():
        agent = await join(pool)
        assert agent.pace == Pace()
        for save_us in (5, 7):
            pool.hear(agent, Pulse(pace=Pace(save_us, 1, 2, 3)))
        pool.hear(agent, Pulse())  # its ranks are gone
        assert agent.pace == Pace(7, 1, 2, 3)

    asyncio.run(scenario())


def test_a_node_that_turns_out_to_be_unfit_is_lost_to_those_who_wait_for_it(pool):
    async def scenario():
        agent = await join(pool)
        pool.hear(agent, replace(agent.hello, fault="its zygotes die"))
        assert await pool.next() == Lost(agent=agent, reason="its zygotes die", excluded=True)
        assert not pool.agents
        assert pool.unfit[0].fault == "its zygotes die"
        assert agent.link.said == [Leave()]

    asyncio.run(scenario())


def test_what_ranks_have_spent_is_added_up_over_nodes(pool):
    for node, generation in ((0, 1), (1, 1), (2, 0)):  # the last one has no new ranks yet
        agent = pool.agents[node] = make_agent(node)
        spent = {"peer wait": 500_000, "productive": 1}
        pool.hear(agent, Pulse(generation=generation, spent=spent))
    assert pool._sum_spent(1) == {"peer wait": 1.0, "productive": 0.000002}


def test_it_is_written_down_that_the_run_is_alive(pool, noted, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ALIVE_S", -1.0)
    pulses = iter([0.0, 0.0])

    async def sleep_a_pulse():
        return next(pulses)

    monkeypatch.setattr(module, "sleep_a_pulse", sleep_a_pulse)

    async def scenario():
        agent = make_agent(0)
        for generation, step in ((0, 30), (1, 20), (1, 25), (0, 31)):
            pool.hear(agent, Pulse(generation=generation, ranks=[[0, step, "R", 1.0]]))
        await pool.start(["agent"], tmp_path, {})
        stop = await pool.next()
        await pool.leave()
        return stop

    stop = asyncio.run(scenario())
    assert noted == [Heartbeat(generation=1, step=25)] * 2
    # Without a pulse agents would leave, so the run ends.
    assert isinstance(stop, Stop)
    assert (stop.exit_code, stop.at_once) == (70, True)
    assert stop.message.startswith("internal error in the agent pool: RuntimeError")


@pytest.mark.parametrize(("step", "expected"), [(3, 2), (-1, 0)])
def test_heartbeats_follow_the_first_step(pool, noted, monkeypatch, step, expected):
    # Until the first one, all of the ranks' time would be productive.
    monkeypatch.setattr(module, "FIRST_ALIVE_S", -1.0)
    pulses = iter([0.0, 0.0])

    async def sleep_a_pulse():
        return next(pulses)

    monkeypatch.setattr(module, "sleep_a_pulse", sleep_a_pulse)

    async def scenario():
        pool.hear(make_agent(0), Pulse(generation=0, ranks=[[0, step, "R", 1.0]]))
        await pool.start(["agent"], Path("run"), {})
        await pool.next()
        await pool.leave()

    asyncio.run(scenario())
    assert noted == [Heartbeat(generation=0, step=step)] * expected


def test_what_a_node_has_to_say_is_written_down_and_told_at_once(pool, noted):
    async def scenario():
        agent = await join(pool)
        pool.hear(agent, Note(text="its GPU does nothing"))
        await pool.next()

    asyncio.run(scenario())
    assert noted[1:] == [
        AgentNote(node=0, text="its GPU does nothing"),
        "node0: its GPU does nothing",
    ]
