"""What a controller keeps of its agents' pulses."""

import asyncio

import pytest

from echelon.launch.backends.local import LocalStarter
from echelon.launch.pool import agent_pool as module
from echelon.launch.pool.agent_pool import AgentPool
from echelon.launch.pool.hang import HangWatch
from echelon.launch.protocol.messages import Hello, Note, Pace, Pulse

HELLO = Hello(node=0, name="n", host="h", addresses=[])


@pytest.fixture
def noted():
    return []


@pytest.fixture
def pool(noted):
    def note(kind, **data):
        noted.append({"kind": kind, **data})

    def report(text):
        noted.append(text)

    return AgentPool(LocalStarter(None, 1), HangWatch(0), note, report)


async def join(pool):
    link = pool._server.make_link()
    link._received(link, HELLO)
    agent, _ = await pool.next()
    return agent


def test_an_agent_has_the_pace_of_its_last_pulse(pool):
    async def scenario():
        agent = await join(pool)
        assert agent.pace == Pace()
        for save_us in (5, 7):
            agent.link._received(agent.link, Pulse(pace=[save_us, 1, 2, 3]))
        assert agent.pace == Pace(7, 1, 2, 3)

    asyncio.run(scenario())


def test_it_is_written_down_that_the_run_goes_on(pool, noted, monkeypatch):
    monkeypatch.setattr(module, "ALIVE_S", -1.0)
    pulses = iter([0.0, 0.0])

    async def sleep_a_pulse():
        return next(pulses)

    monkeypatch.setattr(module, "sleep_a_pulse", sleep_a_pulse)

    async def scenario():
        agent = await join(pool)
        for generation, step in ((0, 30), (1, 20), (1, 25), (0, 31)):
            pulse = Pulse(generation=generation, ranks=[[0, step, "R", 1.0]])
            agent.link._received(agent.link, pulse)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await pool._keep_pulse()

    asyncio.run(scenario())
    assert noted[1:] == [{"kind": "alive", "generation": 1, "step": 25}] * 2


def test_what_a_node_has_to_say_is_written_down_and_told_at_once(pool, noted):
    async def scenario():
        agent = await join(pool)
        agent.link._received(agent.link, Note(text="its GPU does nothing"))
        await pool.next()

    asyncio.run(scenario())
    assert noted[1:] == [
        {"kind": "note", "node": 0, "text": "its GPU does nothing"},
        "n: its GPU does nothing",
    ]
